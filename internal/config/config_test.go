package config_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/internal/config"
)

// environment looks variables up in a map.
func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := vars[name]
		return value, ok
	}
}

func load(t *testing.T, args []string, vars map[string]string) (*config.Loaded, error) {
	t.Helper()
	loaded, _, err := config.Load(args, environment(vars), &bytes.Buffer{})
	return loaded, err
}

func TestLoad_FlagsThenEnvironmentThenDefaults(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, []string{"--ack-timeout", "5ms", "--ack-backoff", "1ms,2ms"}, map[string]string{
		"LUCIUS_ACK_TIMEOUT": "7s", "LUCIUS_LEASE_DURATION": "8s", "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": "90",
	})
	if err != nil {
		t.Fatal(err)
	}
	if loaded.AckTimeout != 5*time.Millisecond || loaded.Lease != 8*time.Second || loaded.StepTimeout != 90*time.Second ||
		len(loaded.AckBackoff) != 2 || loaded.DispatchBackoff[2] != 10*time.Minute || !loaded.Has(config.RoleRelay) {
		t.Errorf("%+v", loaded.Config)
	}
}

func TestLoad_NamesWhatMakesNoSense(t *testing.T) {
	t.Parallel()
	for variable, value := range map[string]string{
		"LUCIUS_LISTEN_ADDR": "0.0.0.0:8080", "LUCIUS_STORAGE_BACKEND": "paper", "LUCIUS_DATA_DIR": "",
		"LUCIUS_BUS": "bicycle", "LUCIUS_SERVICEBUS_LANES": "0", "LUCIUS_SERVICEBUS_REPLIES": "both", "LUCIUS_SERVICEBUS_REPLY_PREFIX": "", "LUCIUS_ROLES": "api,chef", "LUCIUS_ACK_TIMEOUT": "soon",
		"LUCIUS_LEASE_DURATION": "0s", "LUCIUS_STEP_RESULT_TIMEOUT": "-1s", "LUCIUS_DISPATCH_BACKOFF": "1s,never",
		"LUCIUS_BACKOFF_JITTER": "2", "LUCIUS_MAX_ATTEMPTS": "0", "LUCIUS_SWEEP_INTERVAL": "1us", "LUCIUS_PROTOCOLS_INTERVAL": "0s",
		"LUCIUS_MAX_BODY_BYTES": "many", "LUCIUS_MAX_PAYLOAD_BYTES": "458753", "LUCIUS_MAX_CONNECTIONS": "0", "LUCIUS_MAX_INFLIGHT_PER_TENANT": "-1", "LUCIUS_LOG_LEVEL": "loud",
		"LUCIUS_LEDGER_TABLE": "Lucius-Ledger", "LUCIUS_START_PAUSED": "perhaps", "LUCIUS_RETENTION": "long",
		"LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": "x", "LUCIUS_ACK_BACKOFF": strings.Repeat("1s,", 17),
	} {
		_, err := load(t, nil, map[string]string{variable: value})
		if err == nil || !strings.Contains(err.Error(), variable) {
			t.Errorf("%s=%q answered %v", variable, value, err)
		}
	}
}

func TestLoad_ComparesSettings(t *testing.T) {
	t.Parallel()
	for _, vars := range []map[string]string{
		{"LUCIUS_MAX_PAYLOAD_BYTES": "200000", "LUCIUS_MAX_BODY_BYTES": "100000"},
		{"LUCIUS_STORAGE_BACKEND": "ledger"},
		{"LUCIUS_STORAGE_BACKEND": "ledger", "LUCIUS_TABLE_CONNECTION": "c", "LUCIUS_TABLE_ENDPOINT": "e"},
		{"LUCIUS_STORAGE_BACKEND": "table"},
		{"LUCIUS_STORAGE_BACKEND": "table", "LUCIUS_TABLE_CONNECTION": "c", "LUCIUS_TABLE_ENDPOINT": "e"},
		{"LUCIUS_QUEUE_TABLE": "luciusledger"},
		{"LUCIUS_JOBS_TABLE": "luciussteps"},
		{"LUCIUS_OUTBOX_TABLE": "luciusevents"},
		{"LUCIUS_ROLES": "api"},
		{"LUCIUS_BUS": "servicebus"},
		{"LUCIUS_BUS": "servicebus", "LUCIUS_SERVICEBUS_CONNECTION": "c", "LUCIUS_SERVICEBUS_NAMESPACE": "n"},
		{"LUCIUS_SERVICEBUS_REPLIES": "true"},
		{
			"LUCIUS_BUS": "servicebus", "LUCIUS_SERVICEBUS_NAMESPACE": "n", "LUCIUS_SERVICEBUS_REPLIES": "true",
			"LUCIUS_SERVICEBUS_REPLY_PREFIX": "global-bus-p",
		},
		{
			"LUCIUS_BUS": "servicebus", "LUCIUS_SERVICEBUS_NAMESPACE": "n", "LUCIUS_SERVICEBUS_REPLIES": "true",
			"LUCIUS_SERVICEBUS_REPLY_PREFIX": "global-bus-p1", // Lane 0 of replies is lane 10 of directives.
		},
	} {
		if _, err := load(t, nil, vars); err == nil {
			t.Errorf("%v was taken", vars)
		}
	}
}

func TestLoad_TakesBothLayouts(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{config.BackendLedger, config.BackendTable} {
		loaded, err := load(t, nil, map[string]string{
			"LUCIUS_STORAGE_BACKEND": backend, "LUCIUS_TABLE_CONNECTION": "c", "LUCIUS_STEPS_TABLE": "mysteps", "LUCIUS_ROLES": "api",
		})
		if err != nil || !loaded.OnAzure() || loaded.Tables.Steps != "mysteps" || loaded.Tables.Jobs != "luciusjobs" {
			t.Errorf("%s: %+v, %v", backend, loaded, err)
		}
	}
}

func TestLoad_NamesEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	_, err := load(t, []string{"--log-level", "loud"}, map[string]string{"LUCIUS_BUS": "bicycle"})
	if err == nil || !strings.Contains(err.Error(), "--log-level") || !strings.Contains(err.Error(), "LUCIUS_BUS") {
		t.Errorf("answered %v", err)
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, map[string]string{"LUCIUS_DATA_DIR": "/srv/lucius"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := loaded.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"LUCIUS_DATA_DIR=/srv/lucius\n", "LUCIUS_ACK_TIMEOUT=30s\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is missing in:\n%s", line, out.String())
		}
	}
}

func TestPrint_KeepsSecrets(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, map[string]string{"LUCIUS_TABLE_CONNECTION": "AccountKey=hunter2"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := loaded.Print(&out); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); strings.Contains(got, "hunter2") || !strings.Contains(got, "LUCIUS_TABLE_CONNECTION=(set)\n") {
		t.Errorf("printed\n%s", got)
	}
}
