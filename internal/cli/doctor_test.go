package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// patient is a server that answers GET /healthz with this Date, and each other path with a
// status and a body.
func patient(t *testing.T, date time.Time, answers map[string]any) string {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", date.UTC().Format(http.TimeFormat))
		switch value := answers[r.URL.Path].(type) {
		case api.Problem:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(int(value.Status))
			fmt.Fprint(w, encode(t, value))
		case string:
			fmt.Fprint(w, value)
		default:
			fmt.Fprint(w, encode(t, value))
		}
	})
}

func refused(code apierror.Code, detail string) api.Problem {
	return api.Problem{Code: code, Status: int32(code.Status()), Title: code.Title(), Type: code.Type(), Detail: detail}
}

// healthy returns the answers of a healthy server to an operator of all tenants.
func healthy() map[string]any {
	return map[string]any{
		"/healthz": api.Health{Status: "ok"}, "/readyz": api.Readiness{Status: "ready", Warnings: []string{}},
		"/v1/whoami": api.Identity{Name: "local", Origin: api.IdentityOriginLocal, Grants: []api.Grant{
			{Role: api.GrantRoleRead, Tenants: []string{"*"}}, {Role: api.GrantRoleAdmin, Tenants: []string{"*"}},
		}},
		"/metrics": "lucius_build_info{go=\"go1.26\",version=\"v1.2.3\"} 1\n",
	}
}

func TestDoctor(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(answers map[string]any)
		date   time.Time
		code   int
	}{
		"healthy": {func(map[string]any) {}, now.Add(-time.Second), 0},
		"limited": {func(a map[string]any) {
			a["/v1/whoami"] = api.Identity{Name: "ci", Origin: api.IdentityOriginToken, Grants: []api.Grant{
				{Role: api.GrantRoleSubmit, Tenants: []string{"Acme", "tenant_b"}}, {Role: api.GrantRoleRead, Tenants: []string{"Acme", "tenant_b"}},
				{Role: api.GrantRolePlatform, Tenants: []string{"*"}, Services: []string{"ocr", "embed"}},
				{Role: api.GrantRolePlatform, Tenants: []string{"Acme"}, Services: []string{"index"}},
			}}
			a["/metrics"] = refused(apierror.Forbidden, "This requires the role read or admin for all tenants.")
		}, now, 0},
		"degraded": {func(a map[string]any) {
			a["/readyz"] = api.Readiness{Status: "ready", Warnings: []string{"the circuit of topic global-bus-p3 is open", "1 dead letter"}}
		}, now.Add(-10 * time.Second), cli.ExitFailed},
		"unready": {func(a map[string]any) {
			a["/readyz"] = refused(apierror.StoreUnavailable, "The store takes no writes.")
		}, now.Add(time.Minute), cli.ExitFailed},
		"no-token": {func(a map[string]any) { a["/v1/whoami"] = refused(apierror.Unauthenticated, "No valid token.") }, now, cli.ExitFailed},
		"no-role": {func(a map[string]any) {
			a["/v1/whoami"] = api.Identity{Name: "new", Origin: api.IdentityOriginToken}
		}, now, cli.ExitFailed},
		"no-server": {func(a map[string]any) { a["/healthz"] = "<html>" }, now, cli.ExitFailed},
	} {
		answers := healthy()
		test.change(answers)
		l := newLine(t, patient(t, test.date, answers), "LUCIUS_TOKEN=of-"+name)
		out, err := l.run(t, "doctor")
		if cli.ExitCode(err) != test.code {
			t.Errorf("%s: %v", name, err)
		}
		golden(t, "doctor-"+name+".txt", strings.ReplaceAll(out, l.DefaultURL, "http://127.0.0.1:8080"))
		out, _ = l.run(t, "doctor", "-o", "json")
		var report struct {
			OK     bool        `json:"ok"`
			Checks []cli.Check `json:"checks"`
		}
		decoder := json.NewDecoder(strings.NewReader(out))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&report); err != nil || report.OK != (test.code == 0) || len(report.Checks) == 0 {
			t.Errorf("%s as JSON: %v, %+v", name, err, report)
		}
	}
}

func TestDoctor_ChecksFiles(t *testing.T) {
	t.Parallel()
	l := newLine(t, patient(t, now, healthy()))
	l.CheckFiles = func(protocols, dataDir string) []cli.Check {
		return []cli.Check{{Name: "data folder", Detail: protocols + " and " + dataDir + "\x1b[2J", Todo: "mend it"}}
	}
	out, err := l.run(t, "doctor", "--protocols-dir", "p", "--data-dir", "d")
	if cli.ExitCode(err) != cli.ExitFailed || !strings.Contains(out, "✗ data folder  p and d\uFFFD[2J\n               → mend it\n") || err.Error() != "1 check failed" {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDoctor_IsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	l := newLine(t, patient(t, now, healthy()))
	if err := cli.Run(ctx, cli.Root(&l.Env), []string{"doctor"}); cli.ExitCode(err) != cli.ExitInterrupted {
		t.Error(err)
	}
}
