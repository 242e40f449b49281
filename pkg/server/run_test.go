package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/statemachine"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/tablestore/storetest"
	"github.com/lucius-project/lucius/pkg/webhook"
)

const command = `{"tenant_id":"t","request_type":"greeting","schema_version":"1","payload":{},"idempotency_key":"k",` +
	`"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},"callback_urls":["https://example.com/hook"]}`

// minimal returns the smallest configuration.
func minimal(t *testing.T) Config {
	t.Helper()
	registry, err := commands.LoadProtocolsFS(fstest.MapFS{"greeting.yaml": {Data: []byte(
		"protocol_id: greeting_v1\nrequest_types: [greeting]\nsteps:\n  - {step_id: greet, step_type: GREET, service: greeter}\n")}})
	musttest.NoError(t, err)
	return Config{
		Store: memstore.New(memstore.Options{}), Protocols: commands.NewProtocolHolder(registry),
		HTTP: httpapi.Config{Auth: auth.New(auth.Config{Hosts: []string{"example.com"}})},
	}
}

func TestOpen_NamesTheMissingField(t *testing.T) {
	t.Parallel()
	for field, remove := range map[string]func(*Config){
		"Store": func(c *Config) { c.Store = nil }, "Protocols": func(c *Config) { c.Protocols = nil },
		"HTTP.Auth": func(c *Config) { c.HTTP.Auth = nil },
		"Defaults":  func(c *Config) { c.Defaults = statemachine.Policy{Lease: time.Hour} },
		"Roles":     func(c *Config) { c.Roles = []Role{"sweper"} },
		"Publisher": func(c *Config) { c.OpenBus = func(Apply) (*Bus, error) { return new(Bus), nil } },
	} {
		cfg := minimal(t)
		remove(&cfg)
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("without %s: %v", field, err)
		}
	}
}

// A store that notifies other processes of its writes is shared, even inside a wrapper.
func TestOpen_SharesAStoreThatNotifies(t *testing.T) {
	t.Parallel()
	plain := minimal(t)
	shared := &telling{AtomicStore: memstore.New(memstore.Options{}).(tablestore.AtomicStore)}
	for name, store := range map[string]tablestore.Store{"in memory": plain.Store, "a notifier": shared, "wrapped": wrapping{shared}} {
		cfg := minimal(t)
		cfg.Store = store
		s, err := Open(t.Context(), cfg)
		musttest.NoError(t, err)
		if got, want := s.UseCases().Ledger.Exclusive(), name == "in memory"; got != want {
			t.Errorf("%s: exclusive %t, want %t", name, got, want)
		}
	}
}

type (
	telling  struct{ tablestore.AtomicStore }
	wrapping struct{ tablestore.AtomicStore }
)

func (*telling) Notify(string, string)       {}
func (*telling) Listen(string, func(string)) {}
func (w wrapping) Unwrap() tablestore.Store  { return w.AtomicStore }

// opened is a running server.
type opened struct {
	*Server

	stop  context.CancelFunc
	ended chan error
}

func runs(t *testing.T, cfg Config) *opened {
	t.Helper()
	s, err := Open(t.Context(), cfg)
	musttest.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	o := &opened{Server: s, stop: stop, ended: make(chan error, 1)}
	go func() { o.ended <- s.Run(ctx) }()
	return o
}

// sends sends a request in the background, and returns a channel for the response.
func (o *opened) sends(t *testing.T, target string, body io.Reader) chan *httptest.ResponseRecorder {
	t.Helper()
	method, path, _ := strings.Cut(target, " ")
	request, answer := httptest.NewRequestWithContext(t.Context(), method, path, body), make(chan *httptest.ResponseRecorder, 1)
	request.Header.Set("Content-Type", "application/json")
	go func() {
		recorder := httptest.NewRecorder()
		o.ServeHTTP(recorder, request)
		answer <- recorder
	}()
	return answer
}

// The server answers a request in progress and refuses new ones; then Run returns.
func TestRun_WaitsForRequestsInProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := runs(t, minimal(t))
		body, rest := io.Pipe()
		slow := s.sends(t, "POST /v1/commands", body)
		synctest.Wait()
		s.stop()
		time.Sleep(time.Second)
		if got := <-s.sends(t, "POST /v1/commands", strings.NewReader(command)); got.Code != http.StatusServiceUnavailable {
			t.Errorf("a new request: %d", got.Code)
		}
		select {
		case err := <-s.ended:
			t.Errorf("it ended before the request: %v", err)
		default:
		}
		_, err := io.WriteString(rest, command)
		musttest.NoError(t, err)
		musttest.NoError(t, rest.Close())
		if got := <-slow; got.Code != http.StatusAccepted {
			t.Errorf("the request under way: %d", got.Code)
		}
		musttest.NoError(t, <-s.ended)
	})
}

func TestRun_ReportsRequestsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := minimal(t)
		cfg.Grace = time.Second
		s := runs(t, cfg)
		body, rest := io.Pipe()
		slow := s.sends(t, "POST /v1/commands", body)
		synctest.Wait()
		s.stop()
		if err := <-s.ended; err == nil || err.Error() != "requests did not end in 1s" {
			t.Errorf("it ended with %v", err)
		}
		musttest.NoError(t, rest.Close())
		<-slow
	})
}

func TestRun_SendsWebhooksThroughSendWebhook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, sent := minimal(t), make(chan webhook.Message, 1)
		cfg.SendWebhook = func(_ context.Context, message webhook.Message) webhook.Result {
			sent <- message
			return webhook.Result{Outcome: webhook.Delivered, Status: http.StatusNoContent}
		}
		s := runs(t, cfg)
		var accepted api.CommandAccepted
		musttest.NoError(t, json.Unmarshal((<-s.sends(t, "POST /v1/commands", strings.NewReader(command))).Body.Bytes(), &accepted))
		if got := <-s.sends(t, "POST /v1/jobs/"+accepted.JobID+":cancel", http.NoBody); got.Code != http.StatusAccepted {
			t.Errorf("cancel: %d", got.Code)
		}
		if message := <-sent; message.URL != "https://example.com/hook" || message.TenantID != "t" {
			t.Errorf("sent is %+v", message)
		}
		s.stop()
		musttest.NoError(t, <-s.ended)
	})
}

// The audit log records the expiry of a pause once, as the server's own action.
func TestRun_AuditsTheExpiryOfAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := minimal(t)
		cfg.HTTP.Audit = auth.NewAudit(nil)
		s := runs(t, cfg)
		request := strings.NewReader(`{"tenant_id":"t","reason":"maintenance","for_seconds":60}`)
		if got := <-s.sends(t, "POST /v1/admin/pauses", request); got.Code != http.StatusOK {
			t.Fatalf("%d %s", got.Code, got.Body)
		}
		time.Sleep(59 * time.Second)
		expiries := func() (found []auth.Record) {
			found, _ = cfg.HTTP.Audit.Trail(0, 10, func(r *auth.Record) bool { return r.Action == auth.ExpirePause })
			return found
		}
		if got := expiries(); len(got) != 0 || !s.UseCases().Gate.HoldsTenant("t") {
			t.Errorf("before its time: %+v", got)
		}
		time.Sleep(time.Minute)
		got := expiries()
		if len(got) != 1 || got[0].Object != "tenant:t" || got[0].Tenant != "t" || got[0].Caller.Name() != "system" ||
			got[0].Caller.Origin() != auth.ByExpiry || got[0].Outcome != auth.Done {
			t.Errorf("after it: %+v", got)
		}
		s.stop()
		musttest.NoError(t, <-s.ended)
	})
}

// A retry of all outbox rows reads no live job whose row does not wait, since the only process
// on a store knows its live jobs.
func TestRun_RetriesOutboxRowsWithoutReadingAllJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := minimal(t)
		var reads *storetest.Counter
		cfg.Store, reads = storetest.Counting(cfg.Store)
		s := runs(t, cfg)
		if got := <-s.sends(t, "POST /v1/commands", strings.NewReader(command)); got.Code != http.StatusAccepted {
			t.Fatalf("%d %s", got.Code, got.Body)
		}
		time.Sleep(time.Minute + time.Millisecond) // The reconciler has seen the live jobs, and no loop is due now.
		synctest.Wait()
		reads.Reset()
		got := <-s.sends(t, "POST /v1/admin/outbox/retry", strings.NewReader("{}"))
		counts := reads.Counts()
		if got.Code != http.StatusOK || !strings.Contains(got.Body.String(), `"matched":0`) || counts.Gets+counts.Scans > 0 {
			t.Errorf("%d %s, read %+v", got.Code, got.Body, counts)
		}
		s.stop()
		musttest.NoError(t, <-s.ended)
	})
}
