package config_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/musttest"
)

func load(t *testing.T, args []string, vars map[string]string) (*config.Loaded, error) {
	t.Helper()
	var environment []string
	for name, value := range vars {
		environment = append(environment, name+"="+value)
	}
	return config.LoadArgs(args, environment)
}

func TestLoad_FlagsThenEnvironmentThenDefaults(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, []string{"--ack-timeout", "5ms", "--ack-backoff", "1ms,2ms"}, map[string]string{
		"LUCIUS_ACK_TIMEOUT": "7s", "LUCIUS_LEASE_DURATION": "8s", "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": "90",
	})
	musttest.NoError(t, err)
	if loaded.Steps.AckTimeout != 5*time.Millisecond || loaded.Steps.Lease != 8*time.Second || loaded.Steps.Timeout != 90*time.Second ||
		len(loaded.Steps.Ack) != 2 || loaded.Steps.Dispatch[2] != 10*time.Minute || !loaded.Has(config.RoleRelay) {
		t.Errorf("%+v", loaded.Config)
	}
}

// The variables of Option B, 21.1, and of the canvas keep their names, except those of
// Temporal, and that of the in-flight table, whose rows are in the schedule's table.
func TestLoad_TakesTheVariablesOfTheSources(t *testing.T) {
	t.Parallel()
	variables := map[string]string{
		"LUCIUS_STORAGE_BACKEND": "table", "LUCIUS_TABLE_CONNECTION": "account", "LUCIUS_JOBS_TABLE": "jobs",
		"LUCIUS_STEPS_TABLE": "steps", "LUCIUS_LEDGER_TABLE": "ledger", "LUCIUS_IDEMPOTENCY_TABLE": "keys",
		"LUCIUS_JOB_INDEX_TABLE": "lists", "LUCIUS_MAX_INFLIGHT_PER_TENANT": "7",
		"LUCIUS_SERVICEBUS_CONNECTION": "namespace", "LUCIUS_SERVICEBUS_REPLY_PREFIX": "replies-",
		"LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION": "me", "LUCIUS_SERVICEBUS_LANES": "4", "LUCIUS_MAX_ATTEMPTS": "3",
		"LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": "90", "LUCIUS_OUTBOX_RETRY_INTERVAL": "5s",
	}
	loaded, err := load(t, nil, variables)
	musttest.NoError(t, err)
	c := &loaded.Config
	got := map[string]string{
		"LUCIUS_STORAGE_BACKEND": c.StorageBackend, "LUCIUS_TABLE_CONNECTION": c.TableConnection, "LUCIUS_JOBS_TABLE": c.ProjectedTables.Jobs,
		"LUCIUS_STEPS_TABLE": c.StepsTable, "LUCIUS_LEDGER_TABLE": c.Tables.Ledger, "LUCIUS_IDEMPOTENCY_TABLE": c.Tables.Idempotency,
		"LUCIUS_JOB_INDEX_TABLE":         c.Tables.Index,
		"LUCIUS_MAX_INFLIGHT_PER_TENANT": fmt.Sprint(c.MaxInflight), "LUCIUS_SERVICEBUS_CONNECTION": c.ServiceBus.Connection,
		"LUCIUS_SERVICEBUS_REPLY_PREFIX": c.ServiceBus.ReplyPrefix, "LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION": c.ServiceBus.ReplySubscription,
		"LUCIUS_SERVICEBUS_LANES": fmt.Sprint(c.Lanes), "LUCIUS_MAX_ATTEMPTS": fmt.Sprint(c.Steps.MaxAttempts),
		"LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": fmt.Sprint(c.Steps.Timeout.Seconds()), "LUCIUS_OUTBOX_RETRY_INTERVAL": c.RetryInterval.String(),
	}
	if diff := cmp.Diff(variables, got); diff != "" {
		t.Errorf("(-set +loaded):\n%s", diff)
	}
	if c.Bus != config.BusServiceBus || !c.ServiceBus.Replies {
		t.Errorf("the bus is %s, and reply topics are read: %t", c.Bus, c.ServiceBus.Replies)
	}
	if err := loaded.CheckServe(); err != nil {
		t.Error(err)
	}
}

// A setting that only Service Bus or only reply topics use selects them, unless another
// bus is named: then the server refuses it.
func TestLoad_ANamespaceSelectsServiceBus(t *testing.T) {
	t.Parallel()
	const (
		connection   = "LUCIUS_SERVICEBUS_CONNECTION"
		prefix       = "LUCIUS_SERVICEBUS_REPLY_PREFIX"
		subscription = "LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION"
	)
	for _, test := range []struct {
		vars    map[string]string
		bus     string
		replies bool
		refused string // Empty if the server starts.
	}{
		{map[string]string{connection: "c"}, config.BusServiceBus, false, ""},
		{map[string]string{"LUCIUS_SERVICEBUS_NAMESPACE": "n"}, config.BusServiceBus, false, ""},
		{map[string]string{connection: ""}, config.BusQueue, false, ""},
		{map[string]string{connection: "c", prefix: "global-bus-replies-p"}, config.BusServiceBus, true, ""},
		{map[string]string{connection: "c", subscription: "lucius-invoker"}, config.BusServiceBus, true, ""},
		{map[string]string{connection: "c", "LUCIUS_BUS": "servicebus", subscription: "me"}, config.BusServiceBus, true, ""},
		{map[string]string{connection: "c", "LUCIUS_SERVICEBUS_REPLIES": "true"}, config.BusServiceBus, true, ""},
		{
			map[string]string{connection: "c", subscription: "me", "LUCIUS_SERVICEBUS_REPLIES": "false"}, config.BusServiceBus, false,
			subscription + " is set, but LUCIUS_SERVICEBUS_REPLIES is false",
		},
		{map[string]string{connection: "c", "LUCIUS_BUS": "queue"}, config.BusQueue, false, connection + " is set, but LUCIUS_BUS is queue"},
		{map[string]string{prefix: "replies-"}, config.BusQueue, false, prefix + " is set, but LUCIUS_BUS is queue"},
		{map[string]string{"LUCIUS_SERVICEBUS_LANES": "4"}, config.BusQueue, false, ""}, // Routing uses it on any bus.
	} {
		loaded, err := load(t, nil, test.vars)
		if err != nil {
			t.Errorf("%v: %v", test.vars, err)
			continue
		}
		if loaded.Bus != test.bus || loaded.ServiceBus.Replies != test.replies {
			t.Errorf("%v: the bus is %s, and reply topics are read: %t", test.vars, loaded.Bus, loaded.ServiceBus.Replies)
		}
		err = loaded.CheckServe()
		if test.refused == "" && err != nil || test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)) {
			t.Errorf("%v answered %v, want %q", test.vars, err, test.refused)
		}
	}
}

// Azure refuses the sources' table names; the error says which ones to use.
func TestLoad_SuggestsALegalTableName(t *testing.T) {
	t.Parallel()
	for variable, names := range map[string][2]string{
		"LUCIUS_LEDGER_TABLE":      {"lucius_ledger", "luciusledger"},
		"LUCIUS_IDEMPOTENCY_TABLE": {"job-idempotency", "jobidempotency"},
	} {
		_, err := load(t, nil, map[string]string{variable: names[0]})
		if err == nil || !strings.Contains(err.Error(), variable) || !strings.HasSuffix(err.Error(), ", such as "+names[1]) {
			t.Errorf("%s=%s answered %v", variable, names[0], err)
		}
	}
}

func TestLoad_NamesInvalidSettings(t *testing.T) {
	t.Parallel()
	for variable, value := range map[string]string{
		"LUCIUS_LISTEN_ADDR": "0.0.0.0:8080", "LUCIUS_STORAGE_BACKEND": "paper", "LUCIUS_DATA_DIR": "",
		"LUCIUS_BUS": "bicycle", "LUCIUS_SERVICEBUS_LANES": "0", "LUCIUS_SERVICEBUS_REPLIES": "both", "LUCIUS_SERVICEBUS_REPLY_PREFIX": "", "LUCIUS_ROLES": "api,chef", "LUCIUS_ACK_TIMEOUT": "soon",
		"LUCIUS_LEASE_DURATION": "0s", "LUCIUS_STEP_RESULT_TIMEOUT": "-1s", "LUCIUS_DISPATCH_BACKOFF": "1s,never",
		"LUCIUS_BACKOFF_JITTER": "2", "LUCIUS_MAX_ATTEMPTS": "0", "LUCIUS_SWEEP_INTERVAL": "1us", "LUCIUS_PROTOCOLS_INTERVAL": "0s",
		"LUCIUS_MAX_BODY_BYTES": "many", "LUCIUS_MAX_PAYLOAD_BYTES": "458753", "LUCIUS_MAX_CONNECTIONS": "0", "LUCIUS_MAX_INFLIGHT_PER_TENANT": "-1", "LUCIUS_LOG_LEVEL": "loud",
		"LUCIUS_LEDGER_TABLE": "Lucius-Ledger", "LUCIUS_START_PAUSED": "perhaps", "LUCIUS_RETENTION": "long",
		"LUCIUS_SERVICEBUS_TOPIC_PREFIX": "bus p", "LUCIUS_SERVICEBUS_REPLY_SUBSCRIPTION": "lucius/invoker",
		"LUCIUS_REF_PREFIXES": "s3,/mnt/in", "LUCIUS_WEBHOOK_NETWORKS": "::ffff:10.0.0.0/104",
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

func TestCheckServe_RefusesAStoreThatIsNotUsed(t *testing.T) {
	t.Parallel()
	for variable, backends := range map[string][]string{
		"LUCIUS_POSTGRES_URL":     {config.BackendPostgres},
		"LUCIUS_TABLE_CONNECTION": {config.BackendLedger, config.BackendTable},
		"LUCIUS_TABLE_ENDPOINT":   {config.BackendLedger, config.BackendTable},
	} {
		for _, backend := range append([]string{"", config.BackendLocal, config.BackendMemory}, backends...) {
			vars := map[string]string{variable: "x"}
			if backend != "" {
				vars["LUCIUS_STORAGE_BACKEND"] = backend
			}
			loaded, err := load(t, nil, vars)
			musttest.NoError(t, err)
			err = loaded.CheckServe()
			if used := slices.Contains(backends, backend); used != (err == nil) {
				t.Errorf("%v: %v", vars, err)
			}
			if err != nil && !(strings.Contains(err.Error(), variable) && strings.Contains(err.Error(), "LUCIUS_STORAGE_BACKEND")) {
				t.Errorf("%v: %v does not name both variables", vars, err)
			}
		}
	}
}

func TestLoad_TakesBothLayouts(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{config.BackendLedger, config.BackendTable} {
		loaded, err := load(t, nil, map[string]string{
			"LUCIUS_STORAGE_BACKEND": backend, "LUCIUS_TABLE_CONNECTION": "c", "LUCIUS_STEPS_TABLE": "mysteps", "LUCIUS_ROLES": "api",
		})
		if err != nil || !loaded.OnAzure() || loaded.StepsTable != "mysteps" || loaded.ProjectedTables.Jobs != "luciusjobs" {
			t.Errorf("%s: %+v, %v", backend, loaded, err)
		}
	}
}

func TestLoad_LetsProcessesShareTheRolesOnPostgreSQL(t *testing.T) {
	t.Parallel()
	if _, err := load(t, nil, map[string]string{
		"LUCIUS_STORAGE_BACKEND": config.BackendPostgres, "LUCIUS_POSTGRES_URL": "postgres://db", "LUCIUS_ROLES": "relay",
	}); err != nil {
		t.Error(err)
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
	musttest.NoError(t, err)
	var out bytes.Buffer
	musttest.NoError(t, loaded.Print(&out))
	for _, line := range []string{"LUCIUS_DATA_DIR=/srv/lucius\n", "LUCIUS_ACK_TIMEOUT=30s\n"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is missing in:\n%s", line, out.String())
		}
	}
}

func TestPrint_KeepsSecrets(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, map[string]string{
		"LUCIUS_TABLE_CONNECTION": "AccountKey=hunter2", "LUCIUS_POSTGRES_URL": "postgres://u:hunter2@h/d",
		"LUCIUS_SERVICEBUS_ADMIN_CONNECTION": "SharedAccessKey hunter2",
	})
	musttest.NoError(t, err)
	var out bytes.Buffer
	musttest.NoError(t, loaded.Print(&out))
	if got := out.String(); strings.Contains(got, "hunter2") || !strings.Contains(got, "LUCIUS_TABLE_CONNECTION=(set)\n") {
		t.Errorf("printed\n%s", got)
	}
}

func TestLoad_RefusesVariablesThatAreNoSettings(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		vars map[string]string
		want string // Empty if the variables are taken.
	}{
		{map[string]string{"LUCIUS_DATADIR": "x"}, "LUCIUS_DATADIR is not a setting: the closest one is LUCIUS_DATA_DIR;"},
		{map[string]string{"LUCIUS_INFLIGHT_TABLE": "t"}, "the closest one is LUCIUS_SCHEDULE_TABLE;"},
		{map[string]string{"LUCIUS_TEMPORAL_ADDRESS": "a:7233"}, "LUCIUS_TEMPORAL_ADDRESS is not a setting, and nothing takes its place: Lucius needs no Temporal"},
		{map[string]string{"LUCIUS_TEMPORAL_TASK_QUEUE": "q"}, "LUCIUS_TEMPORAL_TASK_QUEUE is not a setting, and nothing takes its place:"},
		{map[string]string{"LUCIUS_INVOKER_URL": "http://i"}, "LUCIUS_INVOKER_URL is not a setting, and nothing takes its place:"},
		{map[string]string{"LUCIUS_REF_PREFIX": "s3"}, "the closest one is LUCIUS_REF_PREFIXES;"},
		{map[string]string{"LUCIUS_STEP_TIMEOUT_SECONDS": "3"}, "the closest one is LUCIUS_STEP_RESULT_TIMEOUT_SECONDS;"},
		{map[string]string{"LUCIUS_PORT": "8080"}, "LUCIUS_PORT is not a setting: the closest one is LUCIUS_LISTEN_ADDR;"},
		{map[string]string{"LUCIUS_HTTP_PORT": "8080"}, "the closest one is LUCIUS_LISTEN_ADDR;"},
		{map[string]string{"LUCIUS_": ""}, "LUCIUS_ is not a setting"},
		{map[string]string{"lucius_data_dir": "x", "LUCIUSX": "y", "LUCIUS_TEST_TABLE_CONNECTION": "z"}, ""},
		{map[string]string{ // variables that Kubernetes sets for the Services lucius and lucius-api
			"LUCIUS_SERVICE_HOST": "10.0.0.1", "LUCIUS_SERVICE_PORT": "80", "LUCIUS_SERVICE_PORT_HTTP": "80", "LUCIUS_PORT": "tcp://10.0.0.1:80",
			"LUCIUS_PORT_80_TCP": "tcp://10.0.0.1:80", "LUCIUS_PORT_80_TCP_PROTO": "tcp", "LUCIUS_PORT_80_TCP_PORT": "80",
			"LUCIUS_PORT_80_TCP_ADDR": "10.0.0.1", "LUCIUS_API_SERVICE_HOST": "10.0.0.2", "LUCIUS_API_PORT": "tcp://10.0.0.2:80",
		}, ""},
	} {
		_, err := load(t, nil, test.vars)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%v answered %v, want %q", test.vars, err, test.want)
		}
	}
}

func TestLoad_RefusesEmptyEntries(t *testing.T) {
	t.Parallel()
	for _, variable := range []string{
		"LUCIUS_REF_PREFIXES", "LUCIUS_ROLES", "LUCIUS_DISPATCH_BACKOFF", "LUCIUS_WEBHOOK_SECRETS", "LUCIUS_WEBHOOK_NETWORKS",
	} {
		for _, value := range []string{",", " ", ",api"} {
			_, err := load(t, nil, map[string]string{variable: value})
			if err == nil || !strings.Contains(err.Error(), variable) || !strings.Contains(err.Error(), "at place 1: must not be empty") {
				t.Errorf("%s=%q answered %v", variable, value, err)
			}
		}
	}
	loaded, err := load(t, nil, map[string]string{"LUCIUS_REF_PREFIXES": "s3, gs://b", "LUCIUS_ACK_BACKOFF": ""})
	if err != nil || len(loaded.RefPrefixes) != 2 || loaded.RefPrefixes[1] != "gs://b" || len(loaded.Steps.Ack) != 0 {
		t.Errorf("%+v, %v", loaded, err)
	}
}

// Protocol files and the environment have the same bounds.
func TestLoad_BoundsDurations(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ variable, value, want string }{
		{"LUCIUS_LEASE_DURATION", "8785h", "must be at most 8784h0m0s"},
		{"LUCIUS_ACK_BACKOFF", "1s,0s", "at place 2: must be at least 1ms"},
		{"LUCIUS_EXECUTION_BACKOFF", "off", "must be a duration such as 30s, 15m or 1h30m"},
		{"LUCIUS_STEP_RESULT_TIMEOUT", "1us", "must be at least 1ms, or off"},
		{"LUCIUS_STEP_RESULT_TIMEOUT", "8785h", "must be at most 8784h0m0s, or off"},
		{"LUCIUS_RETENTION", "900000h", "must be at most 878400h0m0s, or off"},
	} {
		_, err := load(t, nil, map[string]string{test.variable: test.value})
		if err == nil || !strings.Contains(err.Error(), test.variable) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s=%s answered %v, want %s", test.variable, test.value, err, test.want)
		}
	}
	loaded, err := load(t, nil, map[string]string{"LUCIUS_RETENTION": "61320h", "LUCIUS_STEP_RESULT_TIMEOUT": "off", "LUCIUS_IDEMPOTENCY_TTL": "0"})
	if err != nil || loaded.Retention != 61320*time.Hour || loaded.Steps.Timeout != 0 || loaded.KeyTTL != 0 {
		t.Errorf("%+v, %v", loaded, err)
	}
}

// docs/run/settings.md says that times and limits that can be switched off accept both.
func TestLoad_SwitchesOff(t *testing.T) {
	t.Parallel()
	for _, off := range []string{"off", "0"} {
		loaded, err := load(t, nil, map[string]string{
			"LUCIUS_CLOCK_TOLERANCE": off, "LUCIUS_MAX_INFLIGHT_PER_TENANT": off, "LUCIUS_RATE_LIMIT_CALLER": off, "LUCIUS_RATE_LIMIT_TENANT": off,
		})
		c := loaded.Config
		if err != nil || c.ClockTolerance != 0 || c.MaxInflight != 0 || c.CallerLimit.Rate+c.TenantLimit.Rate != 0 {
			t.Errorf("%s: %+v, %v", off, c, err)
		}
	}
}

// The seeds' spelling takes whole seconds and nothing else: a number that is too large must
// not come out as a short timeout, nor 15m as 15 minutes in a variable of seconds.
func TestLoad_TakesTheStepTimeoutInWholeSeconds(t *testing.T) {
	t.Parallel()
	const variable = "LUCIUS_STEP_RESULT_TIMEOUT_SECONDS"
	for _, value := range []string{"", "x", "15m", "1.5", "-5", "31622401", "18446744074", "99999999999999999999"} {
		_, err := load(t, nil, map[string]string{variable: value})
		want := fmt.Sprintf("%s is %q, must be a whole number from 0 to 31622400", variable, value)
		if err == nil || err.Error() != want {
			t.Errorf("%q answered %v", value, err)
		}
	}
	for value, want := range map[string]time.Duration{"0": 0, "31622400": 366 * 24 * time.Hour} {
		if loaded, err := load(t, nil, map[string]string{variable: value}); err != nil || loaded.Steps.Timeout != want {
			t.Errorf("%q answered %v, %v", value, loaded.Steps.Timeout, err)
		}
	}
	_, err := load(t, nil, map[string]string{variable: "900", "LUCIUS_STEP_RESULT_TIMEOUT": "10m"})
	if err == nil || !strings.Contains(err.Error(), variable+" and LUCIUS_STEP_RESULT_TIMEOUT are the same setting") {
		t.Errorf("both answered %v", err)
	}
}

// Any text that holds a secret is masked, even in the wrong setting.
func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	loaded, err := load(t, nil, map[string]string{
		"LUCIUS_TABLE_ENDPOINT":       "https://account.table.core.windows.net/?sv=2022&sig=hunter2%2B&se=2027",
		"LUCIUS_SERVICEBUS_NAMESPACE": "Endpoint=sb://n/;SharedAccessKeyName=Root;SharedAccessKey=hunter2=",
		"LUCIUS_AUDIT_LOG":            "https://me:hunter2/@example.com/log", "LUCIUS_AUTH_FILE": "whsec_hunter2",
	})
	musttest.NoError(t, err)
	var out bytes.Buffer
	musttest.NoError(t, loaded.Print(&out))
	for _, line := range []string{
		"LUCIUS_TABLE_ENDPOINT=https://account.table.core.windows.net/?sv=2022&sig=(set)&se=2027\n",
		"LUCIUS_SERVICEBUS_NAMESPACE=Endpoint=sb://n/;SharedAccessKeyName=Root;SharedAccessKey=(set)\n",
		"LUCIUS_AUDIT_LOG=https://(set)@example.com/log\n", "LUCIUS_AUTH_FILE=whsec_(set)\n",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is missing in:\n%s", line, out.String())
		}
	}
	for variable, value := range map[string]string{
		"LUCIUS_OIDC_ISSUER": "https://me:hunter2@example.com", "LUCIUS_LOG_LEVEL": "https://x/?sig=hunter2",
		"LUCIUS_WEBHOOK_SECRETS": "hunter2", "LUCIUS_WEBHOOK_NETWORKS": "https://me:hunter2@example.com",
		"LUCIUS_LISTEN_ADDR": "https://me:hunter2@example.com",
	} {
		if _, err := load(t, nil, map[string]string{variable: value}); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s answered %v", variable, err)
		}
	}
}
