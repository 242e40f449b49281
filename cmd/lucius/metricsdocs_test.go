//go:build integration && !race

package main

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/lucius-project/lucius/internal/azurite"
	"github.com/lucius-project/lucius/internal/config"
)

// allMetrics returns the metric families of a local server, of one on PostgreSQL, and of
// one with all other optional parts.
func allMetrics(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	dir := t.TempDir()
	ca := newAuthority(t)
	ca.issue(t, dir, "server", "cert.pem", "key.pem")
	tenants := filepath.Join(dir, "tenants.yaml")
	if err := os.WriteFile(tenants, []byte("version: 1\nmax_inflight: {tenant_a: 5}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	account, err := azurite.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(account.Stop)
	optional := serveOn(t, t.TempDir(), append([]string{
		"--storage-backend", config.BackendLedger, "--table-connection", account.ConnectionString(), "--tenants-file", tenants,
		"--tls-cert", filepath.Join(dir, "cert.pem"), "--tls-key", filepath.Join(dir, "key.pem"),
	}, onBus(newNamespace(t))...)...)
	shared := serveOn(t, t.TempDir(), "--storage-backend", config.BackendPostgres, "--postgres-url", onPostgres(t).URL.String())
	local := serveOn(t, t.TempDir())
	plain := &caller{url: local.url, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	plain.want(t, http.StatusOK, http.MethodPut, "/v1/admin/limits/service:extract",
		`{"max_running":100,"starts":{"count":100,"window":"1m"},"reason":"its metrics"}`)
	local.submit(t)
	local.claim(t, "c", false) // It waits.
	plain.do(t, http.MethodPost, "/v1/work:claim", `{"owner":"w","request_id":"r","max":1,"unknown":1}`)
	families := map[string]*dto.MetricFamily{}
	for _, s := range []*caller{plain, {url: shared.url, http: plain.http}, {url: optional.url, http: ca.client()}} {
		s.want(t, http.StatusOK, http.MethodGet, "/metrics", "") // The first scrape counts no request.
		text := s.want(t, http.StatusOK, http.MethodGet, "/metrics", "").body
		parser := expfmt.NewTextParser(model.UTF8Validation)
		found, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"lucius_store_requests_total", "lucius_store_request_seconds"} { // alerts need them on each store
			if found[name] == nil {
				t.Errorf("%s does not report %s", s.url, name)
			}
		}
		maps.Copy(families, found)
	}
	maps.DeleteFunc(families, func(name string, _ *dto.MetricFamily) bool { return !strings.HasPrefix(name, "lucius_") })
	return families
}

// A metric name, as in queries and in the documentation.
var metricName = regexp.MustCompile(`\blucius_[a-z_]*[a-z]`)

// Every metric is documented and follows Prometheus' conventions, and every metric that the
// documentation, the alerts and the dashboard name exists.
func TestMetrics_AreThoseOfTheDocumentation(t *testing.T) {
	t.Parallel()
	families := allMetrics(t)
	problems, err := promlint.NewWithMetricFamilies(slices.Collect(maps.Values(families))).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	page, err := os.ReadFile("../../docs/run/monitoring.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| metric | act when |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for _, name := range metricName.FindAllString(table, -1) {
		documented[name] = true
	}
	existing := slices.Sorted(maps.Keys(families))
	if diff := cmp.Diff(existing, slices.Sorted(maps.Keys(documented))); diff != "" {
		t.Errorf("(-existing +documented):\n%s", diff)
	}
	for _, file := range []string{"alerts.yaml", "dashboard.json"} {
		text, err := os.ReadFile("../../deploy/observability/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range metricName.FindAllString(string(text), -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if !documented[name] && !documented[base] {
				t.Errorf("%s names %s, which does not exist", file, name)
			}
		}
	}
}
