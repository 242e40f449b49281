package httpapi_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/auth"
	"github.com/lucius-project/lucius/pkg/httpapi"
	"github.com/lucius-project/lucius/pkg/tablestore"
)

// testBackups takes backups as the local store does: one at a time.
type testBackups struct {
	open   atomic.Bool
	closed chan struct{} // Gets a value for each backup that is closed.
	// write writes the backup.
	write func(ctx context.Context, w io.Writer) error
}

func newBackups() *testBackups {
	return &testBackups{closed: make(chan struct{}, 100), write: func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, "the whole store")
		return err
	}}
}

// take begins a backup; ready may refuse it.
func (b *testBackups) take(ready func(ctx context.Context) error) func(ctx context.Context) (httpapi.Backup, error) {
	return func(ctx context.Context) (httpapi.Backup, error) {
		if err := ready(ctx); err != nil {
			return nil, err
		}
		if !b.open.CompareAndSwap(false, true) {
			return nil, apierror.Newf(apierror.RateLimited, "Another backup is under way.")
		}
		return b, nil
	}
}

func (b *testBackups) Stream(ctx context.Context, w io.Writer) error { return b.write(ctx, w) }

func (b *testBackups) Close() error {
	b.open.Store(false)
	b.closed <- struct{}{}
	return nil
}

// withBackups makes the server take those backups.
func withBackups(b *testBackups) func(*httpapi.Config) {
	return func(c *httpapi.Config) { c.Backup = b.take(func(context.Context) error { return nil }) }
}

// flood writes until an error.
func flood(_ context.Context, w io.Writer) error {
	part := make([]byte, 1<<17)
	for {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
}

func TestBackup_IsStreamed(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	got := h.do(t, http.MethodPost, "/v1/admin/backup", "")
	if got.Status != http.StatusOK || got.Body != "the whole store" || got.Header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d %v: %q", got.Status, got.Header, got.Body)
	}
	h.measures(t, `lucius_http_wait_duration_seconds_count{method="POST",route="/v1/admin/backup"} 1`)
	if !strings.Contains(h.log.String(), `msg="backup sent" bytes=15`) {
		t.Errorf("the log does not tell of it: %s", h.log)
	}
}

func TestBackup_NeedsAStoreWithBackups(t *testing.T) {
	t.Parallel()
	h := newHarness(t, func(c *httpapi.Config) { c.Backup = nil })
	wantProblem(t, h.do(t, http.MethodPost, "/v1/admin/backup", ""), apierror.NotFound,
		"Only a store in a data folder has backups. Back up PostgreSQL or a storage account by its own means.")
}

// A failure before the first byte is a problem; after it, the connection is cut.
func TestBackup_ThatFailsIsNotTakenForWhole(t *testing.T) {
	t.Parallel()
	backups := newBackups()
	backups.write = func(context.Context, io.Writer) error { return tablestore.ErrNoSpace }
	h := newHarness(t, withBackups(backups))
	if got := h.do(t, http.MethodPost, "/v1/admin/backup", ""); problemOf(t, got).Code != apierror.StoreUnavailable {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	<-backups.closed

	backups.write = func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, strings.Repeat("half of the store", 10_000))
		return errors.Join(err, errUnforeseen)
	}
	server := listen(t, h)
	response, err := server.Client().Post(server.URL+"/v1/admin/backup", "", http.NoBody)
	musttest.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	if _, err := io.ReadAll(response.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("an answer that broke off ends with %v", err)
	}
	<-backups.closed
	server.Close() // It waits for the handler.
	if !strings.Contains(h.log.String(), "dial 10.0.0.7") {
		t.Errorf("the log does not tell why: %s", h.log)
	}
	h.measures(t, `lucius_http_requests_total{code="500",method="POST",route="/v1/admin/backup"} 1`)
}

// A backup ends, and is closed, if its client disconnects, does not read or loses its
// rights, or if the server stops.
func TestBackup_EndsEarly(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, g *guarded) (*testBackups, io.ReadCloser) {
		t.Helper()
		backups := newBackups()
		backups.write = flood
		g.Server = g.serve(t, func(c *httpapi.Config) { c.Auth = auth.New(auth.Config{File: g.file}) }, withBackups(backups))
		server := listen(t, g.harness)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/v1/admin/backup", http.NoBody)
		musttest.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+g.tokens["admin:*"])
		response, err := server.Client().Do(request)
		musttest.NoError(t, err)
		t.Cleanup(func() { _ = response.Body.Close() })
		if response.StatusCode != http.StatusOK {
			t.Fatal(response.Status)
		}
		return backups, response.Body
	}
	t.Run("the client leaves", func(t *testing.T) {
		t.Parallel()
		backups, body := begin(t, newGuarded(t, []string{"admin:*"}))
		musttest.NoError(t, body.Close())
		<-backups.closed
	})
	t.Run("the client does not read", func(t *testing.T) {
		t.Parallel()
		backups, _ := begin(t, newGuarded(t, []string{"admin:*"}))
		<-backups.closed
	})
	t.Run("the server stops", func(t *testing.T) {
		t.Parallel()
		g := newGuarded(t, []string{"admin:*"})
		backups, body := begin(t, g)
		g.Drain()
		if _, err := io.Copy(io.Discard, body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the answer ends with %v", err)
		}
		<-backups.closed
	})
}

// A backup may take longer than any other answer, as long as the client reads.
func TestBackup_MayTakeLong(t *testing.T) {
	t.Parallel()
	backups := newBackups()
	backups.write = func(_ context.Context, w io.Writer) error {
		for range 30 {
			if _, err := io.WriteString(w, strings.Repeat("part", 2_000)); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
		return nil
	}
	h := newHarness(t, withBackups(backups))
	server := httptest.NewUnstartedServer(h)
	server.Config = httpapi.NewHTTPServer(h, quiet())
	server.Config.WriteTimeout = 100 * time.Millisecond
	server.Start()
	defer server.Close()
	response, err := server.Client().Post(server.URL+"/v1/admin/backup", "", http.NoBody)
	musttest.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	if got, err := io.Copy(io.Discard, response.Body); err != nil || got != 30*8_000 {
		t.Errorf("%d bytes arrive: %v", got, err)
	}
}

// The caller's rights are checked repeatedly.
func TestBackup_EndsWithTheRights(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGuarded(t, []string{"admin:*"})
		backups := newBackups()
		began := time.Now()
		backups.write = func(_ context.Context, w io.Writer) error {
			for {
				if _, err := io.WriteString(w, "part"); err != nil {
					return err
				}
				time.Sleep(time.Second)
				text := string(musttest.ReadFile(t, g.path))
				musttest.WriteFile(t, g.path, strings.Replace(text, `"*"`, `["o"]`, 1))
				_, load := g.file.Look()
				_, err := load()
				musttest.NoError(t, err)
			}
		}
		g.Server = g.serve(t, func(c *httpapi.Config) { c.Auth = auth.New(auth.Config{File: g.file}) }, withBackups(backups))
		defer func() {
			if cause := recover(); cause != http.ErrAbortHandler { //nolint:errorlint // It is a value to panic with, never wrapped.
				t.Errorf("the connection is not cut: %v", cause)
			}
			<-backups.closed
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		}()
		g.as(t, "admin:*", "POST /v1/admin/backup", "")
	})
}
