#!/usr/bin/env python3
"""Checks `shiftrt pull` against Python's huggingface_hub, over a hub of its own on the loopback.

  check_hub.py SHIFTRT

1. shiftrt pulls; huggingface_hub, without a network, opens the cache that it made.
2. huggingface_hub downloads; shiftrt, without a network, finds what it laid out.
3. Each continues in the cache of the other without fetching anything again.
Exits with 1 at the first difference. Needs huggingface_hub, and a model directory for step 2: the demo model's.
"""
import hashlib
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "org/tiny"


def git_hash(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub(http.server.BaseHTTPRequestHandler):
    """The part of the hub's protocol that a download needs. Files whose names end in .safetensors are LFS files."""

    protocol_version = "HTTP/1.1"
    files = {}
    sent = 0  # bytes of files

    def log_message(self, *arguments):
        pass

    def answer(self, status, fields, body=b""):
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def etag(self, path):
        content = self.files[path]
        return hashlib.sha256(content).hexdigest() if path.endswith(".safetensors") else git_hash(content)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = urllib.parse.unquote(self.path.split("?")[0])
        as_json = {"Content-Type": "application/json"}
        for revision in ("main", COMMIT):
            if path == f"/api/models/{NAME}/revision/{revision}" or path == f"/api/models/{NAME}":
                siblings = []
                for name, content in self.files.items():
                    sibling = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
                    if name.endswith(".safetensors"):
                        sibling["lfs"] = {"sha256": self.etag(name), "size": len(content), "pointerSize": 134}
                    siblings.append(sibling)
                body = {"id": NAME, "sha": COMMIT, "siblings": siblings}
                return self.answer(200, as_json, json.dumps(body).encode())
            if path == f"/api/models/{NAME}/tree/{revision}":
                entries = []
                for name, content in self.files.items():
                    entry = {"type": "file", "path": name, "size": len(content), "oid": git_hash(content)}
                    if name.endswith(".safetensors"):
                        entry["lfs"] = {"oid": self.etag(name), "size": len(content), "pointerSize": 134}
                    entries.append(entry)
                return self.answer(200, as_json, json.dumps(entries).encode())
            prefix = f"/{NAME}/resolve/{revision}/"
            if path.startswith(prefix) and path[len(prefix):] in self.files:
                return self.send_file(path[len(prefix):])
        return self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    def send_file(self, name):
        content, fields = self.files[name], {"ETag": f'"{self.etag(name)}"', "X-Repo-Commit": COMMIT}
        if name.endswith(".safetensors"):
            fields |= {"X-Linked-Etag": f'"{self.etag(name)}"', "X-Linked-Size": str(len(content))}
        status, asked = 200, self.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            first, last = int(first), int(last) if last else len(content) - 1
            fields["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            status, content = 206, content[first:last + 1]
        if self.command == "GET":
            Hub.sent += len(content)
        self.answer(status, fields, content)


def model_files(directory):
    return {name: open(os.path.join(directory, name), "rb").read() for name in sorted(os.listdir(directory))
            if name.startswith(("config", "tokenizer", "model", "generation"))}


def expect(condition, what):
    if not condition:
        sys.exit(f"check_hub: {what}")


def python(cache, endpoint, code, offline):
    """Runs `code` with a fresh huggingface_hub, which reads its settings when it is imported."""
    environment = os.environ | {"HF_HUB_CACHE": cache, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "1" if offline else "0",
                                "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "no_proxy": "*"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    expect(done.returncode == 0, f"huggingface_hub failed:\n{done.stderr}")
    return done.stdout.strip()


def shiftrt(program, cache, endpoint, arguments, offline=False):
    environment = os.environ | {"HF_HUB_CACHE": cache, "HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "1" if offline else "0",
                                "no_proxy": "*"}
    done = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True)
    expect(done.returncode == 0, f"{' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout.strip()


def tree(cache):
    """Every entry of the repository's folder in the cache: links with where they lead, files with their checksums."""
    found, folder = {}, os.path.join(cache, "models--org--tiny")
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            key = os.path.relpath(path, folder)
            if key.split(os.sep)[0] not in ("refs", "blobs", "snapshots"):
                continue
            found[key] = os.readlink(path) if os.path.islink(path) else hashlib.sha256(open(path, "rb").read()).hexdigest()
    return found


def main():
    program = os.path.abspath(sys.argv[1])
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
    Hub.files = model_files(os.path.join(root, "models/demo"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    size = sum(len(content) for content in Hub.files.values())
    download = f"from huggingface_hub import snapshot_download; print(snapshot_download('{NAME}'))"
    tokenize = ["tokenize", "--model", NAME, "--ids", "It is a truth"]
    with tempfile.TemporaryDirectory() as directory:
        ours, theirs = os.path.join(directory, "ours"), os.path.join(directory, "theirs")

        snapshot = shiftrt(program, ours, endpoint, ["pull", NAME, "--quiet"])
        expect(Hub.sent == size, f"shiftrt fetched {Hub.sent} bytes for {size}")
        local = f"from huggingface_hub import snapshot_download; print(snapshot_download('{NAME}', local_files_only=True))"
        expect(python(ours, endpoint, local, offline=True) == snapshot, "snapshot_download finds another directory")
        for name in Hub.files:
            one = f"from huggingface_hub import try_to_load_from_cache; print(try_to_load_from_cache('{NAME}', '{name}'))"
            expect(python(ours, endpoint, one, offline=True) == os.path.join(snapshot, name), f"{name} is not found")
        scan = ("from huggingface_hub import scan_cache_dir; c = scan_cache_dir(); "
                "print(len(c.repos), len(c.warnings), sum(r.nb_files for r in c.repos))")
        expect(python(ours, endpoint, scan, offline=True) == f"1 0 {len(Hub.files)}", "scan_cache_dir sees another cache")

        Hub.sent = 0
        python(theirs, endpoint, download, offline=False)
        expect(Hub.sent == size, f"huggingface_hub fetched {Hub.sent} bytes for {size}")
        expect(tree(ours) == tree(theirs), f"the caches differ:\n{tree(ours)}\n{tree(theirs)}")
        expect(shiftrt(program, theirs, endpoint, tokenize, offline=True) ==
               shiftrt(program, ours, endpoint, tokenize, offline=True), "the two caches hold different models")

        Hub.sent = 0
        shiftrt(program, theirs, endpoint, ["pull", NAME, "--quiet"])
        python(ours, endpoint, download, offline=False)
        expect(Hub.sent == 0, f"{Hub.sent} bytes were fetched again")
    import huggingface_hub
    print(f"check_hub: {len(Hub.files)} files, {size} bytes, the same cache as huggingface_hub {huggingface_hub.__version__}")


if __name__ == "__main__":
    main()
