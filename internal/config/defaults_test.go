package config_test

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/statemachine"
)

// The defaults that users rely on, written out by hand. The durations and budgets are
// those of "Ledger and state model, Phase 1", Timeouts and retries; the names of topics
// and of the subscription those of Option B, 21.1.
func TestLoad_TheDefaultsAreTheDocumentedOnes(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, nil)
	musttest.NoError(t, err)
	want := config.Config{
		ListenAddr: "127.0.0.1:8080", StorageBackend: "local", DataDir: "./lucius-data", ProtocolsDir: "./protocols",
		Roles:      []string{"api", "relay", "sweeper"},
		StepsTable: "luciussteps",
		Tables: ledger.Tables{
			Ledger: "luciusledger", Idempotency: "jobidempotency", Index: "luciusjobindex", Schedule: "luciusschedule",
			Queue: "luciusqueue", Cron: "luciuscron",
		},
		ProjectedTables: config.ProjectedTables{Jobs: "luciusjobs", Outbox: "luciusoutbox", Events: "luciusevents"},
		Bus:             "queue", TopicPrefix: "global-bus-p", Lanes: 16,
		ServiceBus: config.ServiceBus{ReplyPrefix: "global-bus-replies-p", ReplySubscription: "lucius-invoker"},

		Steps: statemachine.Policy{
			AckTimeout: 30 * time.Second, Lease: 15 * time.Minute, MaxAttempts: 10,
			Dispatch:  []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute},
			Ack:       []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute},
			Execution: []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute},
		},
		Jitter:        0.1,
		RetryInterval: time.Second, SweepInterval: time.Second, ClockTolerance: 5 * time.Second, ProtocolsInterval: 2 * time.Second,
		PublishTimeout: 10 * time.Second, ShutdownGrace: 20 * time.Second,
		LimitSkew: 250 * time.Millisecond, MaxClose: time.Hour,
		MaxConnections: 10_000, MaxBodyBytes: 1_048_576, MaxPayloadBytes: 131_072, BulkShare: 8,
		Retention: 720 * time.Hour, KeyTTL: 168 * time.Hour,

		Access:   config.Access{OIDCRolesClaim: "lucius_roles", OIDCScopes: "openid", AuditLog: "stderr"},
		LogLevel: "info", LogFormat: "json", LogJobs: "all",
	}
	if diff := cmp.Diff(want, loaded.Config); diff != "" {
		t.Errorf("defaults (-documented +loaded):\n%s", diff)
	}
}

var (
	// settingRow is a row of the settings in docs/run/settings.md; its second column begins
	// with a default for each variable, or with one for all.
	settingRow = regexp.MustCompile("(?m)^\\| (`LUCIUS_[^|]*) \\| ((?:`[^`]*`|none|off)(?:, (?:`[^`]*`|none|off))*)")
	// budgetRow is a row of the keys in docs/use/protocols.md that names a variable.
	budgetRow = regexp.MustCompile("(?m)\\| (`LUCIUS_\\w+`), ([^|]*) \\|")
	variable  = regexp.MustCompile(`LUCIUS_\w+`)
)

// The operator's list has each setting once, with its default, and other pages agree.
func TestLoad_TheDefaultsAreInTheDocs(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, nil)
	musttest.NoError(t, err)
	var printed bytes.Buffer
	musttest.NoError(t, loaded.Print(&printed))
	standard := map[string]string{}
	for line := range strings.Lines(printed.String()) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		standard[name] = value
	}
	listed := map[string]int{}
	for _, row := range settingRow.FindAllStringSubmatch(page(t, "run/settings.md"), -1) {
		names, defaults := variable.FindAllString(row[1], -1), strings.Split(row[2], ", ")
		for i, name := range names {
			listed[name]++
			wantDefault(t, "run/settings.md", name, defaults[min(i, len(defaults)-1)], standard)
		}
		if len(defaults) != 1 && len(defaults) != len(names) {
			t.Errorf("%q have the defaults %q", names, defaults)
		}
	}
	for name := range standard {
		if listed[name] != 1 {
			t.Errorf("run/settings.md lists %s %d times in its settings", name, listed[name])
		}
	}
	budgets := budgetRow.FindAllStringSubmatch(page(t, "use/protocols.md"), -1)
	for _, row := range budgets {
		wantDefault(t, "use/protocols.md", strings.Trim(row[1], "`"), strings.ReplaceAll(row[2], " ", ","), standard)
	}
	if len(budgets) != 7 {
		t.Errorf("use/protocols.md names the defaults of %d keys, want 7", len(budgets))
	}
}

func wantDefault(t *testing.T, where, name, said string, standard map[string]string) {
	t.Helper()
	value, known := standard[name]
	said = strings.Trim(said, "`")
	if !known || said != value && !(said == "none" && value == "" || said == "off" && value == "0") {
		t.Errorf("%s says that %s is %q by default, it is %q (known: %t)", where, name, said, value, known)
	}
}

// Variables that pages tell readers to set do not keep commands from starting.
func TestLoad_KnowsTheVariablesInTheDocs(t *testing.T) {
	t.Parallel()
	whole := regexp.MustCompile(`LUCIUS_[A-Z_]*[A-Z]\b`) // not the beginning of one, as LUCIUS_TEST_… is
	for _, pattern := range []string{"docs/run/*.md", "docs/use/*.md", "sdk/*/README.md", "examples/*/README.md"} {
		files, err := filepath.Glob("../../" + pattern)
		musttest.NoError(t, err)
		if len(files) == 0 {
			t.Errorf("no file is %s", pattern)
		}
		for _, file := range files {
			for _, name := range whole.FindAllString(string(musttest.ReadFile(t, file)), -1) {
				if _, err := load(t, nil, map[string]string{name: ""}); err != nil && strings.Contains(err.Error(), name+" is not a setting") {
					t.Errorf("%s names %s: %v", file, name, err)
				}
			}
		}
	}
}

func page(t *testing.T, name string) string {
	t.Helper()
	text := musttest.ReadFile(t, "../../docs/"+name)
	return string(text)
}
