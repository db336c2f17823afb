// SPDX-License-Identifier: Apache-2.0
/// \file
/// All public headers of shiftrt. docs/api.md says what is stable.
#pragma once

#include "shiftrt/blocks.h"
#include "shiftrt/chat.h"
#include "shiftrt/compare.h"
#include "shiftrt/error.h"
#include "shiftrt/evaluate.h"
#include "shiftrt/export.h"
#include "shiftrt/fidelity.h"
#include "shiftrt/finetune.h"
#include "shiftrt/inspect.h"
#include "shiftrt/model.h"
#include "shiftrt/progress.h"
#include "shiftrt/provenance.h"
#include "shiftrt/pull.h"
#include "shiftrt/recipe.h"
#include "shiftrt/repair.h"
#include "shiftrt/resources.h"
#include "shiftrt/runner.h"
#include "shiftrt/sweep.h"
#include "shiftrt/text_name.h"
#include "shiftrt/tokenizer.h"
#include "shiftrt/version.h"
