# Two commands do everything: `make run` (the demo) and `make test` (every check). Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(wildcard cpp/core/*.cc cpp/core/*.h cpp/bind/*.cc cpp/bind/*.h)

.PHONY: run test check build proto test-adapters statistics learn bench bench-check compare test-slow chaos soak fuzz fuzz-live sanitize clean

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

# What takes minutes or gigabytes: parameters of 5 GB, batches of 4, steps of 100 MB; servers and networks that are away for a minute. Needs 16 GB.
test-slow: build
	$(BIN)/pytest -x -q -m slow -o timeout=1800

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

# Faults at random for CHAOS_S seconds (180) from CHAOS_SEED (the time): what was acknowledged is there once, nothing is torn, everybody comes back.
chaos: build
	cd tests && ../$(BIN)/python -m chaos

# What grows: SOAK_S seconds (240) of actors too fast, readers asleep, clients that vanish, and an episode without an end; SOAK_DURABILITY=journal.
soak: build
	cd tests && ../$(BIN)/python -m chaos.soak

# libFuzzer on what reads other people's bytes (tests/fuzz), FUZZ_S seconds each; what it finds is left in build/fuzz, and belongs into the corpus.
FUZZ_S ?= 60
CLANGXX ?= clang++-14
FUZZ_FLAGS := -std=c++20 -O1 -g1 -pthread -fsanitize=address,undefined -fno-sanitize-recover=all -MMD -Icpp/core -Itests/cpp
FUZZERS := $(patsubst tests/fuzz/%_fuzz.cc,%,$(wildcard tests/fuzz/*_fuzz.cc))
FUZZ_CORE := $(patsubst cpp/core/%.cc,build/fuzz/core/%.o,$(wildcard cpp/core/*.cc))

fuzz: build/fuzz/.clang $(FUZZERS:%=build/fuzz/%)
	for one in $(FUZZERS); do echo "$$one:"; mkdir -p build/fuzz/found/$$one tests/fuzz/corpus/$$one; build/fuzz/$$one -max_total_time=$(FUZZ_S) -max_len=4096 -len_control=0 \
	  -timeout=60 -print_final_stats=1 -artifact_prefix=build/fuzz/ build/fuzz/found/$$one tests/fuzz/corpus/$$one 2>build/fuzz/$$one.log \
	  && grep -E 'DONE|number_of_executed' build/fuzz/$$one.log || { tail -40 build/fuzz/$$one.log; exit 1; }; done

build/fuzz/.clang:
	@echo 'int main() {}' | $(CLANGXX) -x c++ -fsanitize=address - -o /dev/null 2>/dev/null || \
	  { echo 'make fuzz needs clang and its runtime: apt-get install clang-14 libclang-rt-14-dev, or CLANGXX=another'; exit 1; }
	@mkdir -p build/fuzz/core && touch $@

build/fuzz/core/%.o: cpp/core/%.cc build/fuzz/.clang
	$(CLANGXX) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -c $< -o $@

build/fuzz/%: tests/fuzz/%_fuzz.cc $(FUZZ_CORE) build/fuzz/.clang
	$(CLANGXX) $(FUZZ_FLAGS) -fsanitize=fuzzer $< $(FUZZ_CORE) -o $@

-include $(wildcard build/fuzz/*.d build/fuzz/core/*.d)

# A million hostile messages on every port of a server that works; FUZZ_MESSAGES of them, FUZZ_SEED tells which.
FUZZ_MESSAGES ?= 1000000
FUZZ_SEED ?= 1
fuzz-live: build
	$(BIN)/python tests/fuzz/live.py --messages $(FUZZ_MESSAGES) --seed $(FUZZ_SEED)

# All C++ tests under AddressSanitizer and UBSan, and under ThreadSanitizer; CXX is any compiler that has them.
sanitize: build
	SANITIZE=1 $(BIN)/pytest -q -o timeout=3600 tests/test_cpp.py

clean:
	rm -rf $(VENV) .venv-* build *.egg-info
