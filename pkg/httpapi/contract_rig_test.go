package httpapi_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lucius-project/lucius/internal/serving"
	"github.com/lucius-project/lucius/pkg/access"
	"github.com/lucius-project/lucius/pkg/breaker"
	realcallbacks "github.com/lucius-project/lucius/pkg/callbacks"
	realcommands "github.com/lucius-project/lucius/pkg/commands"
	realfailures "github.com/lucius-project/lucius/pkg/failures"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/httpapi/contracttest"
	realjobs "github.com/lucius-project/lucius/pkg/jobs"
	"github.com/lucius-project/lucius/pkg/ledger"
	"github.com/lucius-project/lucius/pkg/liveness"
	"github.com/lucius-project/lucius/pkg/outbox"
	realpauses "github.com/lucius-project/lucius/pkg/pauses"
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/routing"
	"github.com/lucius-project/lucius/pkg/seqledger"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/memstore"
	"github.com/lucius-project/lucius/pkg/workqueue"
)

// rig is a server on the real use cases, over a store in memory. What a case needs
// to be there is asked of a second server on the same use cases, which lets
// everybody in and limits nobody.
type rig struct {
	*httpapi.Server

	ports    httpapi.Config
	prepare  *httpapi.Server
	contract *contracttest.Contract
	access   *access.Authenticator
	store    *fragile
	ledger   *ledger.Ledger
	relay    *outbox.Relay
	tokens   map[string]string
	commands int
}

// fragile is a store that answers everything with its failure, once it has one.
type fragile struct {
	tablestore.Store

	failure atomic.Pointer[error]
}

// fail makes the store fail from now on.
func (f *fragile) fail(err error) { f.failure.Store(&err) }

func (f *fragile) Get(ctx context.Context, key tablestore.Key) (tablestore.Row, error) {
	if failure := f.failure.Load(); failure != nil {
		return tablestore.Row{}, *failure
	}
	return f.Store.Get(ctx, key)
}

func (f *fragile) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if failure := f.failure.Load(); failure != nil {
		return tablestore.Page{}, *failure
	}
	return f.Store.Scan(ctx, query)
}

func (f *fragile) Commit(ctx context.Context, batch tablestore.Batch) ([]tablestore.ETag, error) {
	if failure := f.failure.Load(); failure != nil {
		return nil, *failure
	}
	return f.Store.Commit(ctx, batch)
}

// Ready makes the rig say what the program says of its store.
func (r *rig) Ready(ctx context.Context) ([]string, error) {
	_, _, err := r.ledger.Live(ctx, 0, 1, "")
	return nil, ledger.Problem(err)
}

// rigProtocol asks for a language, so that there are payloads that it refuses.
const rigProtocol = `
protocol_id: doc_ingest_v1
request_types: [doc.ingest]
steps:
  - step_id: ocr
    step_type: OCR
    service: ocr
    payload_schema: {type: object, required: [language], properties: {language: {type: string}}}
`

// maxRigBody is the largest body that a rig takes.
const maxRigBody = 1 << 14

// newRig returns a server for the callers of the token file, each of whom may send
// one request.
func newRig(t *testing.T, contract *contracttest.Contract, file *access.File, tokens map[string]string) *rig {
	t.Helper()
	store := &fragile{Store: memstore.New(memstore.Options{})}
	r := &rig{contract: contract, store: store, tokens: tokens, access: access.New(access.Config{File: file})}
	must(t, r.assemble(t.Context()))
	r.prepare = r.serve(t, func(c *httpapi.Config) { c.Access = open() })
	r.Server = r.serve(t, func(c *httpapi.Config) {
		c.Access, c.CallerLimit, c.MaxBodyBytes = r.access, atMost(t, 1), maxRigBody
	})
	return r
}

// serve returns a server on the rig's use cases.
func (r *rig) serve(t *testing.T, changes ...func(*httpapi.Config)) *httpapi.Server {
	t.Helper()
	config := r.ports
	config.Readiness, config.Registry = r, prometheus.NewRegistry()
	for _, change := range changes {
		change(&config)
	}
	server, err := httpapi.New(config)
	must(t, err)
	return server
}

// must fails the test for an error of its own.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// assemble makes the use cases, as the program does.
func (r *rig) assemble(ctx context.Context) error {
	inbox, storage := outbox.NewInbox(16), workqueue.NewStorage(r.store, "")
	var ended realjobs.Ended
	var err error
	if r.ledger, err = ledger.Open(ctx, ledger.Config{
		Store: r.store, Handoff: inbox, Follower: storage, Ended: ended.Tell,
	}); err != nil {
		return err
	}
	queue, err := workqueue.New(workqueue.Config{Storage: storage, Ledger: r.ledger})
	if err != nil {
		return err
	}
	breakers, err := breaker.NewSet(breaker.Config{})
	if err != nil {
		return err
	}
	if r.relay, err = outbox.NewRelay(outbox.Config{
		Ledger: r.ledger, Publisher: queue, Inbox: inbox, Breakers: breakers,
		Fatal: func(e *seqledger.IllegalTransitionError) { panic(e) },
	}); err != nil {
		return err
	}
	parts := &serving.Parts{
		Ledger: r.ledger, Queue: queue, Jobs: realjobs.New(r.ledger, &ended, 0), Callbacks: realcallbacks.New(r.ledger),
		Operator: outbox.NewOperator(r.ledger), Log: slog.New(slog.DiscardHandler),
	}
	if err := r.accept(parts); err != nil {
		return err
	}
	if err := r.operate(ctx, parts); err != nil {
		return err
	}
	r.ports, err = serving.Ports(parts)
	return err
}

// accept adds what accepts commands.
func (r *rig) accept(parts *serving.Parts) error {
	registry, err := protocol.LoadFS(fstest.MapFS{"ingest.yaml": {Data: []byte(rigProtocol)}})
	if err != nil {
		return err
	}
	parts.Protocols = protocol.NewHolder(registry)
	router, err := routing.New(routing.Config{Lanes: 2, TopicPrefix: "topic"})
	if err != nil {
		return err
	}
	parts.Commands, err = realcommands.New(realcommands.Config{
		Ledger: serving.Admitting(r.ledger), Protocols: parts.Protocols, Router: router,
	})
	return err
}

// operate adds what operators have.
func (r *rig) operate(ctx context.Context, parts *serving.Parts) error {
	var err error
	table := r.ledger.Tables().Schedule
	if parts.Failures, err = realfailures.New(realfailures.Config{Ledger: r.ledger, Store: r.store, Table: table}); err != nil {
		return err
	}
	if parts.Pauses, err = realpauses.New(realpauses.Config{Store: r.store, Table: table}); err != nil {
		return err
	}
	if parts.Gate, err = realpauses.NewGate(ctx, parts.Pauses, parts.Log); err != nil {
		return err
	}
	parts.Checker, err = liveness.New(liveness.Config{Ledger: r.ledger})
	return err
}

// dispatch runs the relay until the test ends.
func (r *rig) dispatch(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = r.relay.Run(ctx) }) // It ends with the test, and says so.
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

// question is a request of a caller, who is named by its grants: everyRole where it
// is empty.
type question struct {
	target, body string
	caller       string
	// contentType is what the body is declared as, JSON where it is empty.
	contentType string
	// key is the idempotency key, if there is one.
	key string
	// unreadable makes the server panic that reads the body.
	unreadable bool
}

// panicking is a body that is a defect.
type panicking struct{}

func (panicking) Read([]byte) (int, error) { panic("out of cheese") }

// request is the question as it is sent.
func (q question) request(ctx context.Context, tokens map[string]string) *http.Request {
	method, path := split(q.target)
	var body io.Reader = strings.NewReader(q.body)
	if q.body == "" {
		body = http.NoBody
	}
	if q.unreadable {
		body = panicking{}
	}
	request := httptest.NewRequestWithContext(ctx, method, path, body)
	if q.body != "" {
		request.Header.Set("Content-Type", cmp.Or(q.contentType, "application/json"))
	}
	if q.key != "" {
		request.Header.Set("Idempotency-Key", q.key)
	}
	if token := tokens[cmp.Or(q.caller, everyRole)]; token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return request
}

// ask sends a question to the server, and holds request and answer against the
// contract.
func (r *rig) ask(t *testing.T, server *httpapi.Server, q question) answer {
	t.Helper()
	request := q.request(t.Context(), r.tokens)
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	exchange := &contracttest.Exchange{
		Request: request, Sent: []byte(q.body), Status: recorder.Code, Header: recorder.Header(), Received: recorder.Body.Bytes(),
	}
	if err := r.contract.Check(exchange); err != nil {
		t.Error(err)
	}
	return answer{Status: recorder.Code, Header: recorder.Header(), Body: recorder.Body.String()}
}

// given asks for what a case needs to be there, and returns the answer.
func (r *rig) given(t *testing.T, target, body string) answer {
	t.Helper()
	got := r.ask(t, r.prepare, question{target: target, body: body, caller: nobody})
	if got.Status >= http.StatusMultipleChoices {
		t.Fatalf("%s: %d %s", target, got.Status, got.Body)
	}
	return got
}

// rigCommand is a command of the tenant t.
const rigCommand = `{"tenant_id":"t","request_type":"doc.ingest","schema_version":"1","payload":{"language":"en"},` +
	`"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},"callback_urls":["https://hooks.example/a"]}`

// verbBody is the body of a worker's verb.
func verbBody(rev int64, more string) string {
	return fmt.Sprintf(`{"owner":"o","expected_rev":%d,"request_id":"r2"%s}`, rev, more)
}
