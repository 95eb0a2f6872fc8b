# What a person types. `make test` is what CI runs; `make proof` holds what takes longer.

SHELL := bash
CARGO ?= cargo
# Two cores: tests that start control planes run one binary at a time anyway.
TEST_FLAGS ?=

.PHONY: help test fmt lint deny unit demo proof bench crds control-plane install clean-playground

help:
	@echo "make demo     the tour: a control plane is removed on loopback, step by step"
	@echo "make test     format, lints, licences, every test"
	@echo "make proof    what is too long for that: the whole fault matrices"
	@echo "make bench    ratios against kubectl, printed as a table"
	@echo "make install  kubectl-ichor into ~/.cargo/bin (or CARGO_INSTALL_ROOT)"

# Built once, kept outside the checkout.
control-plane:
	@tests/go/build.sh control-plane > /dev/null

test: control-plane fmt lint deny unit

fmt:
	$(CARGO) fmt --all --check

lint:
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

# With cargo-deny where it is installed; tests/tests/dependencies.rs holds the same
# bans and licences over `cargo metadata` where it is not.
deny:
	@if command -v cargo-deny > /dev/null; then cargo deny --all-features check bans licenses sources; \
	else echo "cargo-deny is not installed: bans and licences are checked by tests/tests/dependencies.rs"; fi

unit:
	$(CARGO) build --locked -p ichor-agent --features ichor-agent/failpoints -p kubectl-ichor -p ichor-tests --bins
	$(CARGO) test --workspace --locked --features ichor-agent/failpoints $(TEST_FLAGS)

demo: control-plane
	$(CARGO) build --locked -p ichor-agent --features ichor-agent/failpoints -p kubectl-ichor -p ichor-tests --bins
	target/debug/demo

proof: control-plane
	$(CARGO) test --workspace --locked --features ichor-agent/failpoints -- --ignored --nocapture --test-threads=1

bench: control-plane
	$(CARGO) build --release --locked -p ichor-agent -p kubectl-ichor -p ichor-tests --bins
	target/release/bench all

crds:
	UPDATE=1 $(CARGO) test --locked -p ichor-api --test crds

install:
	$(CARGO) install --locked --path plugin
