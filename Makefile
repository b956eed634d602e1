# Two commands do everything: `make run` (the demo) and `make test` (every check). Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(wildcard cpp/core/*.cc cpp/core/*.h cpp/bind/*.cc cpp/bind/*.h)

.PHONY: run test check build proto test-adapters statistics learn bench bench-check compare clean

run: build
	$(BIN)/memsvc demo

test: check
	$(BIN)/pytest -x -q

check: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/typed && mkdir -p build/typed
	ln -s ../../memsvc build/typed/memsvc
	ln -s ../../clients build/typed/memsvc_client
	ln -s ../../proto build/typed/memsvc_proto
	MYPYPATH=build/typed:cpp/bind $(BIN)/mypy -p memsvc -p memsvc_client -p memsvc_proto

build: $(VENV)/.built

$(VENV)/.built: setup.py pyproject.toml constraints.txt $(CORE) Makefile
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

# TensorFlow has an environment of its own: it is large, and the client's promise is to install beside any trainer, whatever that pins.
test-adapters: .venv-tf/.built
	.venv-tf/bin/pytest -x -q tests/adapters

.venv-tf/.built: setup.py pyproject.toml $(CORE) Makefile
	test -x .venv-tf/bin/python || $(PYTHON) -m venv .venv-tf
	.venv-tf/bin/pip install -q 'tensorflow-cpu==2.21.*' 'gymnasium>=1.0' pytest pytest-timeout
	.venv-tf/bin/pip install -q -e '.[server]'
	touch $@

# Generated code refuses packages older than its compiler, so the compiler is an old one: proto/ then runs with every protobuf from 6.31.1 on.
proto:
	test -x .venv-proto/bin/python || $(PYTHON) -m venv .venv-proto
	.venv-proto/bin/pip install -q 'grpcio-tools==1.74.*' setuptools
	mkdir -p build
	.venv-proto/bin/python -m grpc_tools.protoc -Imemsvc_proto=proto --python_out=build --grpc_python_out=build memsvc_proto/control.proto
	mv build/memsvc_proto/control_pb2*.py proto/

# The two-stage claims at ten times the length of `make test`; what it prints are the raw numbers.
statistics: build
	STATISTICS=10 $(BIN)/pytest -q -s -o timeout=1800 tests/test_closed_loop.py

# Learning proofs of four algorithm families: curves in benchmarks/results/learning.png.
learn: build
	$(BIN)/python benchmarks/learning.py

bench: build
	$(BIN)/python benchmarks/run.py

# The regression guard: ratios to numpy and memcpy of the same run against benchmarks/floors.json; about two minutes.
bench-check: build
	$(BIN)/python benchmarks/check.py

# Side by side with other replay memories, each in an environment of its own under .venv-peers: gigabytes at first, then about ten minutes a run.
compare: build
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf $(VENV) .venv-* build *.egg-info
