# make demo    see an agent get better in two nights      make lint     style and types
# make test    everything that needs no browser           make bench    the published numbers, one by one
# make vllm    the engine contract on a real vLLM, on this machine's CPU
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint bench vllm clean

demo: .venv/.demo
	$(BIN)/nightschool demo $(ARGS)

test: .venv/.test
	$(BIN)/python -m pytest -m "not slow"

vllm: .venv/.test
	vllm="$$(PYTHON=$(PYTHON) .ci/vllm.sh)" && NIGHTSCHOOL_VLLM="$$vllm" $(BIN)/python -m pytest -m vllm

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# One benchmark: make bench NAME=overnight
bench: .venv/.test
ifdef NAME
	$(BIN)/python benchmarks/$(NAME).py $(ARGS)
else
	@echo "make bench NAME=... [ARGS=...], one of:"
	@cd benchmarks && for file in [a-z]*.py feedback/[a-z]*.py objectives/[a-z]*.py speed/[a-z]*.py; do \
	  case $$file in common.py | objectives/harness.py | objectives/reader.py) continue ;; esac; \
	  echo "  $${file%.py}	$$(head -1 $$file | tr -d '"')"; \
	done
endif

clean:
	rm -rf .venv .venv-vllm .pytest_cache .ruff_cache .hypothesis

# The stamps say what is installed; a second call does nothing until pyproject.toml or the versions change.
.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Nightschool into .venv: some minutes, once."
	$(PIP) --editable '.[train,demo]'
	@touch $@

.venv/.test: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Nightschool with its test tools into .venv: some minutes, once."
	$(PIP) --editable '.[train,demo,test,clients]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Nightschool needs Python 3.11 or newer, this is %d.%d. Try: make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "This Python cannot make environments. On Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
