package server_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
)

// submitted is an inbox in memory that drops each command once it is decided.
type submitted struct {
	inbox.Operator

	waiting  chan inbox.Command
	outcomes chan inbox.Outcome
	refused  atomic.Int64
	kept     atomic.Int64 // for how long decided commands are, as the last call of Forget said
}

func (s *submitted) Take(ctx context.Context, _ int, _ []string, accept func(context.Context, []inbox.Command) []inbox.Outcome) (int, error) {
	select {
	case command := <-s.waiting:
		outcome := accept(ctx, []inbox.Command{command})[0]
		if outcome.JobID == "" && outcome.Wait == 0 && !outcome.PutBack {
			s.refused.Add(1)
		}
		s.outcomes <- outcome
		return 1, nil
	default:
		return 0, nil
	}
}

func (s *submitted) Survey(context.Context) (inbox.Survey, error) {
	return inbox.Survey{Refused: int(s.refused.Load()), OldestRefused: time.Now()}, nil
}

func (s *submitted) Forget(_ context.Context, _ string, retention time.Duration) (string, int, error) {
	s.kept.Store(int64(retention))
	return "", 0, nil
}

const oneStep = `protocol_id: p
request_types: [t]
steps: [{step_id: s, step_type: S, service: svc}]
`

// TestInbox_AcceptsCommandsAsOverHTTP submits commands through an inbox: they become jobs, are
// refused, or wait at the tenant's limit.
func TestInbox_AcceptsCommandsAsOverHTTP(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &submitted{waiting: make(chan inbox.Command, 9), outcomes: make(chan inbox.Outcome, 9)}
		wake := make(chan struct{})
		s, stop := serve(t, server.Config{
			Inbox: source, InboxWake: wake, Ledger: ledger.Config{Limit: func(string) int { return 1 }},
		})
		defer stop()
		submit := func(body string) inbox.Outcome {
			time.Sleep(2 * time.Second) // A tenant that was at its limit is skipped that long.
			synctest.Wait()             // until the loop waits
			source.waiting <- inbox.Command{ID: "c", TenantID: "acme", SubmittedBy: "shop", SubmittedAt: time.Now(), Body: []byte(body)}
			began := time.Now()
			wake <- struct{}{}
			outcome := <-source.outcomes
			if took := time.Since(began); took > 100*time.Millisecond {
				t.Errorf("the command was taken after %s", took)
			}
			return outcome
		}
		const command = `{"tenant_id": "acme", "request_type": "t", "schema_version": "1", "payload": {"n": 1.50},
			"input_ref": {"uri": "s3://in"}, "output_ref": {"uri": "s3://out"}, "idempotency_key": "`
		first := submit(command + `a"}`)
		if again := submit(command + `a"}`); first.JobID == "" || again.JobID != first.JobID {
			t.Errorf("%+v, and again %+v", first, again)
		}
		history := get[api.EventPage](t, s, "/v1/jobs/"+first.JobID+"/events")
		if history.Events[0].Caller != "inbox:shop" {
			t.Errorf("%+v", history.Events[0])
		}
		if full := submit(command + `b"}`); !full.PutBack || full.Problem.Code != apierror.TenantLimit {
			t.Errorf("beyond the limit: %+v", full)
		}
		if early := submit(strings.Replace(command, `"t"`, `"new"`, 1) + `d"}`); early.Wait == 0 || early.Problem.Code != apierror.UnknownRequestType {
			t.Errorf("before its protocol: %+v", early)
		}
		modal := strings.Replace(command, `"tenant_id"`, `"order_mode": "fifo", "tenant_id"`, 1) // The protocol may get a key.
		if early := submit(modal + `e"}`); early.Wait == 0 || early.Problem.Code != apierror.InvalidEnvelope {
			t.Errorf("before its protocol has a key: %+v", early)
		}
		if bad := submit(`{"tenant_id":"acme"}`); bad.Wait != 0 || bad.Problem.Code != apierror.InvalidEnvelope {
			t.Errorf("half a command: %+v", bad)
		}
		if bad := submit("{"); bad.Wait != 0 || bad.Problem.Code != apierror.InvalidJSON {
			t.Errorf("half a document: %+v", bad)
		}
		// White space that the database has added does not count.
		long := strings.Replace(command, "1.50", "["+strings.Repeat("1,"+strings.Repeat(" ", 5000), 100)+"1]", 1)
		if full := submit(long + `c"}`); full.Problem.Code != apierror.TenantLimit {
			t.Errorf("a payload with much white space: %+v", full)
		}
		time.Sleep(time.Minute)
		if got := get[api.Readiness](t, s, "/readyz"); !strings.Contains(strings.Join(got.Warnings, "\n"), "commands of the inbox were refused: 2") {
			t.Errorf("%+v", got)
		}
		if got := s.UseCases().Counts.Report().Refused.Total; got != 2 {
			t.Errorf("%d refused commands are counted", got)
		}
	})
}

// The job of a command is purged after both the retention and the lifetime of its key. Before, a
// search for commands to delete would read those of all these jobs in vain.
func TestInbox_KeepsDecidedCommandsAsLongAsJobs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ retention, keyTTL, want time.Duration }{
		{24 * time.Hour, 168 * time.Hour, 168 * time.Hour},
		{720 * time.Hour, 168 * time.Hour, 720 * time.Hour},
		{720 * time.Hour, 0, 720 * time.Hour},
		{0, 168 * time.Hour, 0}, // forever
	} {
		synctest.Test(t, func(t *testing.T) {
			source := &submitted{}
			_, stop := serve(t, server.Config{Inbox: source, Ledger: ledger.Config{Retention: test.retention, KeyTTL: test.keyTTL}})
			defer stop()
			time.Sleep(time.Minute)
			if got := time.Duration(source.kept.Load()); got != test.want {
				t.Errorf("with a retention of %s and keys of %s, it deletes commands after %s", test.retention, test.keyTTL, got)
			}
		})
	}
}

func TestInbox_IsNotReadWithoutTheRoleAPI(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		s, stop := serve(t, server.Config{
			Inbox: forbidden{t: t}, Roles: []server.Role{server.RoleRelay, server.RoleSweeper}, Registry: registry,
		})
		defer stop()
		time.Sleep(time.Minute)
		families, err := registry.Gather()
		musttest.NoError(t, err)
		for _, family := range families {
			if family.GetName() == "lucius_inbox_oldest_seconds" {
				t.Error("the metrics tell the age of commands that are not read")
			}
		}
		if s.UseCases().Inbox != nil {
			t.Error("the API would show the inbox")
		}
	})
}

// forbidden is an inbox that fails the test if it is read.
type forbidden struct {
	inbox.Source

	t *testing.T
}

func (f forbidden) Take(context.Context, int, []string, func(context.Context, []inbox.Command) []inbox.Outcome) (int, error) {
	f.t.Error("commands were taken")
	return 0, nil
}

func (f forbidden) Survey(context.Context) (s inbox.Survey, err error) {
	f.t.Error("commands were counted")
	return s, nil
}

// serve runs a server in memory until stop is called.
func serve(t *testing.T, cfg server.Config) (_ *server.Server, stop func()) {
	t.Helper()
	registry := musttest.Make[fs.FS](t, commands.LoadProtocolsFS, fstest.MapFS{"p.yaml": {Data: []byte(oneStep)}})
	if cfg.Store == nil {
		cfg.Store = memstore.New(memstore.Options{})
	}
	cfg.Protocols, cfg.HTTP = commands.NewProtocolHolder(registry), httpapi.Config{Auth: auth.New(auth.Config{})}
	cfg.Logger = slog.New(slog.DiscardHandler)
	s, err := server.Open(t.Context(), cfg)
	musttest.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = cfg.Store.Close() // A store in memory always closes.
	}
}

// get sends a GET request, and decodes the response.
func get[T any](t *testing.T, s *server.Server, path string) (answer T) {
	t.Helper()
	recorder := httptest.NewRecorder()
	s.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil))
	if err := json.Unmarshal(recorder.Body.Bytes(), &answer); err != nil || recorder.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", path, recorder.Code, recorder.Body)
	}
	return answer
}
