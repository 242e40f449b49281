// An hour of virtual time takes minutes under the race detector. The observability stage of
// make check runs these tests without it.

//go:build integration && !race

package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/inbox"
	"github.com/lucius-project/lucius/pkg/server"
	"github.com/lucius-project/lucius/pkg/tablestore"
	"github.com/lucius-project/lucius/pkg/tablestore/pebblestore"
)

// recording is what Prometheus would scrape from a server. go test -artifacts keeps it, and
// the module deploy/observability evaluates the alerts on it.
type recording struct{ text strings.Builder }

// scraped adds a scrape at that time.
func (r *recording) scraped(at time.Time, text string) {
	fmt.Fprintf(&r.text, "# scraped %d\n%s", at.UnixMilli(), text)
}

// keep writes the recording for the module, under the name of the test.
func (r *recording) keep(t *testing.T) {
	t.Helper()
	_, name, _ := strings.Cut(t.Name(), "/")
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), name+".metrics"), []byte(r.text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// scrapeInterval is the time between two scrapes of a recording.
const scrapeInterval = 30 * time.Second

// pipeListener is a listener without a network: virtual time needs one.
type pipeListener struct {
	accepted chan net.Conn
	closed   chan struct{}
	close    func()
}

func newPipeListener() *pipeListener {
	p := &pipeListener{accepted: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
func (p *pipeListener) Close() error   { p.close(); return nil }

func (p *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	own, other := net.Pipe()
	select {
	case p.accepted <- other:
		return own, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// hookedStore is the local store with a hook that runs before its scans.
type hookedStore struct {
	*pebblestore.Store

	scans atomic.Pointer[func(ctx context.Context, query tablestore.Query) error]
}

func (m *hookedStore) Scan(ctx context.Context, query tablestore.Query) (tablestore.Page, error) {
	if before := m.scans.Load(); before != nil {
		if err := (*before)(ctx, query); err != nil {
			return tablestore.Page{}, err
		}
	}
	return m.Store.Scan(ctx, query)
}

// situation is a server with the default settings on virtual time and a disk in memory, with
// its clients and its recording.
type situation struct {
	recording
	*caller

	t         *testing.T
	protocols string // the folder
	disk      *vfs.MemFS
	store     *hookedStore
	serial    atomic.Int64
	workers   atomic.Pointer[workers]
	inbox     refusing
	idle      bool // no jobs are submitted
	// expires is how long after its submission a job expires. 0 means never.
	expires time.Duration
	key     string // the order key of the jobs that are submitted
}

// refusing is an inbox with refused and waiting commands.
type refusing struct {
	inbox.Operator

	refused atomic.Int64
	waits   atomic.Bool // One command waits from now on.
	hangs   atomic.Bool // The inbox does not answer.
	since   time.Time
}

func (r *refusing) Take(ctx context.Context, _ int, _ []string, _ func(context.Context, []inbox.Command) []inbox.Outcome) (int, error) {
	if r.hangs.Load() {
		<-ctx.Done()
	}
	return 0, ctx.Err()
}

func (*refusing) Forget(context.Context, string, time.Duration) (next string, deleted int, err error) {
	return "", 0, nil
}

func (r *refusing) Survey(context.Context) (inbox.Survey, error) {
	survey := inbox.Survey{Refused: int(r.refused.Load())}
	if r.waits.Load() {
		if r.since.IsZero() {
			r.since = time.Now()
		}
		survey.Waiting, survey.OldestWaiting = 1, r.since
	}
	return survey, nil
}

// workers says how the three workers behave. While it is nil, they claim no work.
type workers struct {
	takes   time.Duration
	fails   func(n int64) bool // whether the nth item fails
	failure string             // more fields of the report
}

// normal workers fail one attempt in twenty with a retryable failure.
var normal = workers{
	takes: 2 * time.Second, fails: func(n int64) bool { return n%20 == 0 },
	failure: `,"retryable":true,"error":{"code":"busy","message":"m"}`,
}

// freeDisk is the free disk space in normal times.
const freeDisk = 100 << 30

// inSituation starts a server with these flags in the test's bubble, and stops it after the
// script. If roles are given, it has only these, as if other processes had the others.
func inSituation(t *testing.T, roles []string, script func(*situation), flags ...string) {
	t.Helper()
	s := &situation{t: t, protocols: t.TempDir(), disk: vfs.NewMem()}
	s.leave(freeDisk)
	if err := os.CopyFS(s.protocols, os.DirFS("../../protocols")); err != nil {
		t.Fatal(err)
	}
	loaded, err := config.LoadArgs(append([]string{"--protocols-dir", s.protocols}, flags...), nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg, ctx := &loaded.Config, t.Context()
	if len(roles) > 0 {
		cfg.Roles = roles
	}
	log, err := newLogger(io.Discard, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
	access, err := openAccess(ctx, cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics()
	local, err := pebblestore.Open(pebblestore.Options{Dir: "data", FS: s.disk, Observe: m.observeCall})
	if err != nil {
		t.Fatal(err)
	}
	registry, err := commands.LoadProtocols(s.protocols)
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(cfg, log, m, local, access, commands.NewProtocolHolder(registry))
	s.store = &hookedStore{Store: local}
	h.store = s.store
	settings, err := h.settings(ctx)
	if err != nil {
		t.Fatal(err)
	}
	settings.Inbox = &s.inbox
	if h.server, err = server.Open(ctx, *settings); err != nil {
		t.Fatal(err)
	}
	listener, ended := newPipeListener(), make(chan error, 1)
	running, stop := context.WithCancel(ctx)
	go func() { ended <- h.run(running, listener, nil) }()
	transport := &http.Transport{
		DialContext: listener.dial, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // There is no network.
	}
	s.caller = &caller{url: "http://localhost", http: &http.Client{Transport: transport}}
	if access.certificates != nil {
		s.url = "https://localhost"
	}

	s.workers.Store(&normal)
	clients, rest := context.WithCancel(ctx)
	var group sync.WaitGroup
	for n := range 3 {
		group.Go(func() { s.work(clients, n) })
	}
	defer func() {
		rest()
		group.Wait()
		s.store.scans.Store(nil)
		s.leave(freeDisk)
		transport.CloseIdleConnections()
		stop()
		if err := errors.Join(<-ended, access.close()); err != nil {
			t.Errorf("the server did not end well: %v", err)
		}
		h.close()
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	}()
	script(s)
	s.keep(t)
}

// leave sets the free disk space, in bytes.
func (s *situation) leave(free uint64) {
	s.disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 40})
}

// submit submits a job, unless the store accepts none.
func (s *situation) submit() {
	s.t.Helper()
	more := ""
	if s.key != "" {
		more = fmt.Sprintf(`"order_key":%q,`, s.key)
	}
	if s.expires > 0 {
		more += fmt.Sprintf(`"not_after":%q,`, time.Now().Add(s.expires).UTC().Format(time.RFC3339))
	}
	got := s.do(s.t, http.MethodPost, "/v1/commands", fmt.Sprintf(`{"tenant_id":"tenant_a","request_type":"doc.ingest",`+
		`"schema_version":"1","payload":{"language":"en"},"input_ref":{"uri":"s3://in"},"output_ref":{"uri":"s3://out"},%s`+
		`"idempotency_key":"%d"}`, more, s.serial.Add(1)))
	if got.status != http.StatusAccepted && got.status != http.StatusServiceUnavailable {
		s.t.Fatalf("submit: %d, %s", got.status, got.body)
	}
}

// passes lets time pass, with a job submitted between each two scrapes.
func (s *situation) passes(d time.Duration) {
	s.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		if !s.idle {
			s.submit()
		}
		time.Sleep(scrapeInterval)
		s.scraped(time.Now(), s.want(s.t, http.StatusOK, http.MethodGet, "/metrics", "").body)
	}
}

// work claims and ends items until the context ends.
func (s *situation) work(ctx context.Context, n int) {
	for ctx.Err() == nil {
		w := s.workers.Load()
		if w == nil {
			time.Sleep(time.Second)
			continue
		}
		serial := s.serial.Add(1)
		answer, err := s.call(ctx, http.MethodPost, "/v1/work:claim", fmt.Sprintf(
			`{"owner":"w%d","request_id":"%d","max":1,"wait_seconds":20,"start":true}`, n, serial))
		var claimed struct {
			Items []struct {
				WorkID string `json:"work_id"`
				Rev    int64  `json:"rev"`
			} `json:"items"`
		}
		if err != nil || answer.status != http.StatusOK || json.Unmarshal([]byte(answer.body), &claimed) != nil || len(claimed.Items) == 0 {
			time.Sleep(time.Second)
			continue
		}
		time.Sleep(w.takes)
		item := claimed.Items[0]
		verb, more := "complete", ""
		if w.fails(serial) {
			verb, more = "fail", w.failure
		}
		_, _ = s.call(ctx, http.MethodPost, "/v1/work/"+item.WorkID+":"+verb, fmt.Sprintf( // A lost item returns when its lease expires.
			`{"owner":"w%d","request_id":"end %d","expected_rev":%d%s}`, n, serial, item.Rev, more))
	}
}
