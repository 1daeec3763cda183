# Everything happens in this directory: tools go to .venv, builds to target and dist.
# `make` alone lists what there is.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := .venv-torch
TORCH_VERSION := 2.13.0
TRACE := examples/traces/mooncake_conversation.jsonl

# cargo-nextest where it is installed (prettier, and it kills what hangs), cargo's own runner where
# it is not. Asked at use, so that `make help` starts no cargo.
CARGO_TEST = $(shell cargo nextest --version >/dev/null 2>&1 && echo "nextest run" || echo test --lib --bins --tests --examples)
# What the user has set is kept: a --cfg of ours must not drop a linker of theirs.
LOOM_FLAGS := $(RUSTFLAGS) --cfg dynamo_loom
MDBOOK_VERSION := 0.5.4
MDBOOK := target/tools/mdbook-$(MDBOOK_VERSION)/bin/mdbook
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: quickstart
quickstart: wheel ## build, install into .venv, replay a real trace through two tiers, verified
	$(BIN)/dynamo-llm replay $(TRACE) --verify

.PHONY: test
test: lint-rust test-rust loom book lint-python test-python ## everything that has to hold

.PHONY: test-rust
test-rust: ## the Rust tests and the samples in the documentation
	cargo $(CARGO_TEST) --locked
	cargo test --doc --locked

.PHONY: loom
loom: ## every interleaving of the handle races
	RUSTFLAGS="$(LOOM_FLAGS)" cargo test --release --locked --target-dir target/loom --test loom
	RUSTFLAGS="$(LOOM_FLAGS)" cargo test --release --locked --target-dir target/loom --lib loom_tests

.PHONY: test-python
test-python: tools ## the wheel, installed, from the outside: package, command line, README
	$(BIN)/python -m pytest

# torch is several gigabytes, so it has an environment of its own and no part in `make test`.
.PHONY: test-torch
test-torch: wheel ## the tests that exchange tensors and tokens with torch, in .venv-torch
	@test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip --disable-pip-version-check --quiet install \
	  'torch==$(TORCH_VERSION)' "$$(echo dist/dynamo_llm-*.whl)[test]"
	$(TORCH)/bin/python -m pip --disable-pip-version-check --quiet install \
	  --force-reinstall --no-deps dist/dynamo_llm-*.whl
	$(TORCH)/bin/python -m pytest tests/test_dlpack.py tests/test_borrow.py tests/test_hashing.py
	$(TORCH)/bin/python examples/numpy_torch.py

.PHONY: book
book: $(MDBOOK) ## the book into book/book, the reference of the crate into target/doc
	$(MDBOOK) build book
	RUSTDOCFLAGS="$(RUSTDOCFLAGS) -D warnings" cargo doc --no-deps --locked

# The version stands in the path, so that another one is another file. Neither its server nor its
# watcher is needed, which halves what there is to compile.
$(MDBOOK):
	cargo install --quiet --locked --version $(MDBOOK_VERSION) --no-default-features \
	  --features search --root $(dir $(@D)) mdbook

.PHONY: crash
crash: ## a process that stores blocks is killed a thousand times; what it left is damaged and checked
	DYNAMO_TEST_CRASH_ROUNDS=1000 cargo test --release --locked --test crash -- --nocapture

.PHONY: bench
bench: ## benchmarks; each figure is one line of JSON with its reference from the same run
	cargo bench --locked

.PHONY: bench-disk
bench-disk: ## the disk tier beside fio (apt install fio); DYNAMO_BENCH_DIR names the drive
	cargo bench --locked --bench disk

.PHONY: bench-python
bench-python: wheel ## the verbs from Python beside the same bare work on dicts and lists
	$(BIN)/python tests/bench_python.py

.PHONY: lint
lint: lint-rust lint-python ## formatting, clippy, ruff, mypy, and cargo-deny where installed
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	else echo "skipped: cargo deny (cargo install --locked cargo-deny)"; fi

.PHONY: lint-rust
lint-rust:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: lint-python
lint-python: tools
	$(BIN)/ruff format --check python tests examples
	$(BIN)/ruff check python tests examples
	$(BIN)/mypy --strict
	$(BIN)/python -m mypy.stubtest dynamo_llm --mypy-config-file pyproject.toml

.PHONY: wheel
wheel: $(VENV)/.maturin ## build the wheel into dist/ and install it into .venv
	@rm -f dist/dynamo_llm-*.whl
	$(BIN)/maturin build --release --locked --out dist
	$(PIP) install dist/dynamo_llm-*.whl
	$(PIP) install --force-reinstall --no-deps dist/dynamo_llm-*.whl

# What the tests need beside the wheel; the list stands in pyproject.toml.
.PHONY: tools
tools: wheel
	$(PIP) install "$$(echo dist/dynamo_llm-*.whl)[test,plot]"

$(VENV)/.maturin: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11: make PYTHON=/path/to/python3.11 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "$(PYTHON) has no venv (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PIP) install 'maturin>=1.9.4,<2'
	@touch $@

.PHONY: clean
clean: ## remove what was built, .venv too
	rm -rf $(VENV) $(TORCH) target dist book/book .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find python tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
