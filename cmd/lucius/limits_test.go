package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/internal/waittest"
)

// The memory limit never caps the live heap, and stacks, which the collector cannot free, do
// not reduce the heap's share.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		alive, stacks uint64
		want          int64
	}{
		{0, 0, collectHarderAt},
		{100 << 20, 0, collectHarderAt},
		{100 << 20, 100 << 20, collectHarderAt},
		{collectHarderAt, 0, collectHarderAt * 3 / 2},
		{collectHarderAt, collectHarderAt, collectHarderAt * 5 / 2},
		{0, 2 * collectHarderAt, 2 * collectHarderAt},
		{1 << 40, 1 << 30, 3<<39 + 1<<30},
		{math.MaxUint64, 0, math.MaxInt64/2 + math.MaxInt64/4},
		{math.MaxUint64, math.MaxUint64, math.MaxInt64},
	} {
		if got := memoryLimit(test.alive, test.stacks); got != test.want {
			t.Errorf("with %d bytes alive and %d of stacks it is %d, want %d", test.alive, test.stacks, got, test.want)
		}
	}
}

func TestMaxConnections_LeavesFilesToTheStore(t *testing.T) {
	t.Parallel()
	files, limited := openFiles()
	for _, test := range []struct {
		wanted int
		cut    bool
	}{
		{1, false},
		{int(files/2) + 1, limited},
	} {
		var log bytes.Buffer
		got := maxConnections(t.Context(), &config.Config{MaxConnections: test.wanted}, slog.New(slog.NewTextHandler(&log, nil)))
		if cut := got < test.wanted; cut != test.cut || cut != strings.Contains(log.String(), "max_connections=") {
			t.Errorf("%d of %d connections with %d files, and the log says %q", got, test.wanted, files, &log)
		}
		if test.cut && uint64(got) != files/2 {
			t.Errorf("%d connections with %d files", got, files)
		}
	}
}

// The limit of a tenant is changed in its file, in both directions, while the server
// runs; a file that is not valid changes nothing and is a warning.
func TestServe_ATenantsLimitIsReloaded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	limitTo := func(limit string) {
		text := "version: 1\nmax_inflight:\n  tenant_a: " + limit + "\n"
		if err := errors.Join(os.WriteFile(path+".next", []byte(text), 0o600), os.Rename(path+".next", path)); err != nil {
			t.Fatal(err)
		}
	}
	limitTo("1")
	s := serveOn(t, t.TempDir(), "--tenants-file", path, "--max-inflight-per-tenant", "2", "--protocols-interval", "10ms")
	keys := 0
	submit := func(tenantID string) int {
		keys++
		response, err := s.client.SubmitCommandWithResponse(t.Context(), nil, api.Command{
			TenantID: tenantID, RequestType: "doc.ingest", SchemaVersion: "1", Payload: json.RawMessage(`{"language":"en"}`),
			InputRef: json.RawMessage(`{"uri":"s3://in"}`), OutputRef: json.RawMessage(`{"uri":"s3://out"}`), IdempotencyKey: strconv.Itoa(keys),
		})
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode()
	}
	expect := func(tenantID string, want ...int) {
		t.Helper()
		for _, status := range want {
			if got := submit(tenantID); got != status {
				t.Errorf("command %d, of %s: %d, want %d", keys, tenantID, got, status)
			}
		}
	}
	expect("tenant_a", http.StatusAccepted, http.StatusTooManyRequests)
	expect("tenant_b", http.StatusAccepted, http.StatusAccepted, http.StatusTooManyRequests)
	limitTo("3")
	waittest.Until(t, "the higher limit holds", func() bool { return submit("tenant_a") == http.StatusAccepted })
	expect("tenant_a", http.StatusAccepted, http.StatusTooManyRequests)
	limitTo("many")
	waittest.Until(t, "the file is refused", func() bool {
		anyone := &caller{url: s.url, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		return strings.Contains(anyone.want(t, http.StatusOK, "GET", "/readyz", "").body, "tenants' limits are refused")
	})
	expect("tenant_a", http.StatusTooManyRequests)
}
