package cli_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/musttest"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// startLimit is a limit of a service.
func startLimit(service, starts, reason string) api.StartLimit {
	of, err := api.ParseStarts(starts)
	if err != nil {
		panic(err)
	}
	return api.StartLimit{ID: "service:" + service, Service: service, Starts: &of, Used: new(42), Actor: "ops-1", Reason: reason, AsOf: at(0)}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	ocr := startLimit("ocr", "600/1m", "vendor quota")
	closure := &api.Closure{Until: at(-5 * time.Minute), Since: at(time.Minute), By: "ops-2", Reason: "the vendor answers 503"}
	both := startLimit("ocr", "600/1m", "vendor quota")
	both.Closed = closure
	closed := api.StartLimit{ID: "service:embed,tenant:a~20b", Service: "embed", TenantID: "a b", Closed: closure, AsOf: at(0)}
	list := api.StartLimitList{Limits: []api.StartLimit{closed, both, startLimit("scan", "50/5s", "")}}
	shows(t, "limits", "GET /v1/admin/limits", list, "limit list")
	shows(t, "limits-none", "GET /v1/admin/limits", api.StartLimitList{Limits: []api.StartLimit{}}, "limit list")
	shows(t, "limit", "GET /v1/admin/limits/service:ocr", both, "limit show service:ocr")
	shows(t, "limit-set", `PUT /v1/admin/limits/service:ocr {"reason":"why","starts":{"count":600,"window":"1m"}}`, ocr,
		"limit set service:ocr --starts 600/60s --reason why")
	shows(t, "limit-set", `PUT /v1/admin/limits/service:ocr {"allow_unknown":true,"reason":"why","starts":{"count":600,"window":"1m"}}`, ocr,
		"limit set service:ocr --starts 600/1m --reason why --allow-unknown")
	runs := api.StartLimit{ID: "service:ocr", Service: "ocr", MaxRunning: 40, Running: new(17), Actor: "ops-1", Reason: "sessions"}
	shows(t, "limit-set-running", `PUT /v1/admin/limits/service:ocr {"max_running":40,"reason":"why","starts":{"count":600,"window":"1m"}}`, runs,
		"limit set service:ocr --starts 600/1m --running 40 --reason why")
	shows(t, "limit-running", "GET /v1/admin/limits/service:ocr", runs, "limit show service:ocr")
	shows(t, "limit-delete", "DELETE /v1/admin/limits/service:ocr", api.StartLimit{ID: "service:ocr"}, "limit delete service:ocr")
	shows(t, "limit-close", `POST /v1/admin/limits/service:ocr:close {"for_seconds":300,"reason":"why"}`, both,
		"limit close service:ocr --for 5m --reason why")
	shows(t, "limit-close", `POST /v1/admin/limits/service:ocr:close {"reason":"why","until":"2026-01-27T18:00:00.000Z"}`, both,
		"limit close service:ocr --until 2026-01-27T18:00:00Z --reason why")
	shows(t, "limit-open", `POST /v1/admin/limits/service:ocr:open {"reason":"fixed"}`, ocr, "limit open service:ocr --reason fixed")

	l := newLine(t, newScripted(t, map[string][]any{
		"PUT /v1/admin/limits/service:ocr": {apierror.LimitUnsupported}, "GET /v1/admin/limits/none": {apierror.NotFound},
		"GET /v1/admin/limits": {list},
	}).url)
	for line, code := range map[string]int{
		"limit set service:ocr --starts 600 --reason x":                            cli.ExitUsage,
		"limit set service:ocr --starts 0/1m --reason x":                           cli.ExitUsage,
		"limit set service:ocr --starts 1/25h --reason x":                          cli.ExitUsage,
		"limit set service:ocr --starts 600/1m":                                    cli.ExitUsage,
		"limit set service:ocr --starts 600/1m --reason x":                         cli.ExitRefused,
		"limit set service:ocr --reason x":                                         cli.ExitUsage,
		"limit set service:ocr --running 10001 --reason x":                         cli.ExitUsage,
		"limit set --starts 600/1m --reason x":                                     cli.ExitUsage,
		"limit close service:ocr --reason x":                                       cli.ExitUsage,
		"limit close service:ocr --for 5m":                                         cli.ExitUsage,
		"limit close service:ocr --for 0s --reason x":                              cli.ExitUsage,
		"limit close service:ocr --for 5m --until 2026-01-27T18:00:00Z --reason x": cli.ExitUsage,
		"limit open":      cli.ExitUsage,
		"limit delete":    cli.ExitUsage,
		"limit show none": cli.ExitNotFound,
		"limit apply":     cli.ExitUsage,
	} {
		if _, err := l.run(t, strings.Split(line, " ")...); cli.ExitCode(err) != code {
			t.Errorf("%s: %v", line, err)
		}
	}
	l.Environment = append(l.Environment, "LUCIUS_URL="+l.DefaultURL)
	out, err := l.run(t, "__complete", "limit", "show", "")
	if err != nil || !strings.HasPrefix(out, "service:embed,tenant:a~20b\tclosed\nservice:ocr\tclosed\nservice:scan\t50/5s\n:4\n") {
		t.Errorf("completions: %v, %q", err, out)
	}
}

// A file of limits sets those that differ; the others go only if that is asked for.
func TestLimits_AreAppliedFromAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	musttest.WriteFile(t, file, `limits:
  - {id: "service:ocr", starts: 600/1m, reason: vendor quota}
  - {id: "service:scan", starts: 100/1s, reason: slower}
  - {id: "service:embed", starts: 50/5s, reason: new}
`)
	closed := api.StartLimit{ID: "service:closed", Service: "closed", Closed: &api.Closure{Until: at(-time.Hour)}}
	before := api.StartLimitList{Limits: []api.StartLimit{
		closed, startLimit("ocr", "600/60s", "vendor quota"), startLimit("old", "1/1s", "gone"), startLimit("scan", "200/1s", "fast"),
	}}
	server := newScripted(t, map[string][]any{
		"GET /v1/admin/limits":                {before},
		"PUT /v1/admin/limits/service:scan":   {startLimit("scan", "100/1s", "slower")},
		"PUT /v1/admin/limits/service:embed":  {startLimit("embed", "50/5s", "new")},
		"DELETE /v1/admin/limits/service:old": {api.StartLimit{ID: "service:old"}},
	})
	l := newLine(t, server.url)
	const read = "GET /v1/admin/limits"
	set := []string{
		`PUT /v1/admin/limits/service:scan {"reason":"slower","starts":{"count":100,"window":"1s"}}`,
		`PUT /v1/admin/limits/service:embed {"reason":"new","starts":{"count":50,"window":"5s"}}`,
	}
	golden(t, "limits-applied.txt", l.must(t, "limit", "apply", "-f", file))
	server.wantAsked(t, read, set[0], set[1])

	if _, err := l.run(t, "limit", "apply", "-f", file, "--prune"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("limits are deleted without a question: %v", err)
	}
	server.wantAsked(t, read)
	golden(t, "limits-pruned.txt", l.must(t, "limit", "apply", "-f", file, "--prune", "--yes"))
	server.wantAsked(t, read, set[0], set[1], "DELETE /v1/admin/limits/service:old")
	const want = `{
  "changes": [
    {
      "id": "service:ocr",
      "change": "unchanged",
      "limit": "600/1m"
    },
    {
      "id": "service:scan",
      "change": "set",
      "limit": "100/1s",
      "before": "200/1s"
    },
    {
      "id": "service:embed",
      "change": "set",
      "limit": "50/5s"
    }
  ]
}
`
	if diff := cmp.Diff(want, l.must(t, "limit", "apply", "-f", file, "-o", "json")); diff != "" {
		t.Errorf("for programs (-want +got):\n%s", diff)
	}
}

// What was done before a failure is said, and the command fails.
func TestLimits_ThatCannotBeAppliedAreTold(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	musttest.WriteFile(t, file, `limits: [{id: "service:a", starts: 1/1s, reason: r}, {id: "service:b", starts: 1/1s, reason: r}]`)
	l := newLine(t, newScripted(t, map[string][]any{
		"GET /v1/admin/limits":           {api.StartLimitList{}},
		"PUT /v1/admin/limits/service:a": {startLimit("a", "1/1s", "r")},
		"PUT /v1/admin/limits/service:b": {apierror.Forbidden},
	}).url)
	out, err := l.run(t, "limit", "apply", "-f", file)
	if cli.ExitCode(err) != cli.ExitForbidden || out != "Limited service:a to 1/1s\n" || !strings.Contains(err.Error(), "service:b") {
		t.Errorf("%q, %v", out, err)
	}
	for name, text := range map[string]string{
		"no YAML":          "limits: [",
		"a second file":    `limits: [{id: "service:a", starts: 1/1s, reason: r}]` + "\n---\nlimits: []",
		"an unknown field": `limits: [{id: "service:a", starts: 1/1s, reason: r, burst: 2}]`,
		"no id":            `limits: [{starts: 1/1s, reason: r}]`,
		"an id twice":      `limits: [{id: a, starts: 1/1s, reason: r}, {id: a, starts: 2/1s, reason: r}]`,
		"no starts":        `limits: [{id: "service:a", reason: r}]`,
		"no reason":        `limits: [{id: "service:a", starts: 1/1s}]`,
	} {
		musttest.WriteFile(t, file, text)
		if _, err := l.run(t, "limit", "apply", "-f", file); cli.ExitCode(err) != cli.ExitUsage {
			t.Errorf("%s: %v", name, err)
		}
	}
}
