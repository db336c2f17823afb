// Nothing but the precompiled headers of the tests, which a target with a source carries.
