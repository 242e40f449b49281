package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// Check is the result of one check of lucius doctor.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	// Todo says how to fix a failure. Optional.
	Todo string `json:"todo,omitempty"`
}

// checkup is the output of lucius doctor.
type checkup struct {
	OK     bool    `json:"ok"`
	Checks []Check `json:"checks"`
}

// doctor returns lucius doctor.
func (t *tool) doctor() *cobra.Command {
	var protocols, dataDir string
	cmd := t.command(spec{
		use: "doctor", short: "Check the server, the token, and files of a server on this host",
		long: "Checks that the server can be reached and is ready, what the token may do, and how far the clocks are\n" +
			"apart; with --protocols-dir and --data-dir, also files on this host. Says what to do about each problem,\n" +
			"and exits with 1 if there is one. What is wrong with the work is shown by lucius attention.",
		example: "  lucius doctor\n  lucius doctor --protocols-dir ./protocols --data-dir ./lucius-data",
	}, func(ctx context.Context, s *session, _ []string) error {
		checks := s.examine(ctx)
		if s.CheckFiles != nil {
			checks = append(checks, s.CheckFiles(protocols, dataDir)...)
		}
		if ctx.Err() != nil {
			return unreachable(context.Canceled)
		}
		faults := 0
		for _, check := range checks {
			if !check.OK {
				faults++
			}
		}
		if err := show(s, checkup{faults == 0, checks}, showCheckup); err != nil || faults == 0 {
			return err
		}
		return &Error{Code: ExitFailed, Err: errors.New(diagnosis.Count(faults, "check") + " failed")}
	})
	flags := cmd.Flags()
	flags.StringVar(&protocols, "protocols-dir", "", "also check the protocol files of this folder")
	flags.StringVar(&dataDir, "data-dir", "", "also check this data folder of a server: its permissions and free space")
	cmd.GroupID = GroupSetUp
	return t.calls(cmd)
}

// showCheckup writes a line for each check, and how to fix failures.
func showCheckup(p *page, all checkup) {
	widest := 0
	for _, check := range all.Checks {
		widest = max(widest, width(check.Name))
	}
	for _, check := range all.Checks {
		mark := p.style(green, "✓")
		if !check.OK {
			mark = p.style(red, "✗")
		}
		p.line("%s %-*s  %s", mark, widest, check.Name, check.Detail)
		if check.Todo != "" {
			p.line("  %s  %s", strings.Repeat(" ", widest), p.style(bold, "→ "+check.Todo))
		}
	}
}

// examine checks the server and the token.
func (s *session) examine(ctx context.Context) []Check {
	var date string
	asked := s.now()
	_, err := call[api.Health](recordDate(&date)(s.GetHealth(ctx)))
	if err != nil {
		return []Check{failedCheck("server", err)}
	}
	at, _ := s.connection() // Opening the session has shown that it can be read.
	checks := []Check{{Name: "server", OK: true, Detail: at.URL + " answers"}}
	return append(append(checks, s.checkReady(ctx)...), append([]Check{clocks(asked, s.now(), date)}, s.checkToken(ctx)...)...)
}

// recordDate stores the Date of a response.
func recordDate(date *string) func(*http.Response, error) (*http.Response, error) {
	return func(response *http.Response, err error) (*http.Response, error) {
		if err == nil {
			*date = response.Header.Get("Date")
		}
		return response, err
	}
}

// failedCheck returns a check that failed with an error. The text after the error's last colon
// says what to do.
func failedCheck(name string, err error) Check {
	text := plain(err.Error())
	if i := strings.LastIndex(text, ": "); i > 0 {
		return Check{Name: name, Detail: text[:i], Todo: text[i+2:]}
	}
	return Check{Name: name, Detail: text}
}

// checkReady checks that the server is ready. Each warning is a failed check.
func (s *session) checkReady(ctx context.Context) []Check {
	ready, err := call[api.Readiness](s.GetReadiness(ctx))
	if err != nil {
		return []Check{failedCheck("ready", err)}
	}
	checks := []Check{{Name: "ready", OK: true, Detail: "the store can be read and accepts writes"}}
	for _, warning := range ready.Warnings {
		checks = append(checks, Check{Name: "degraded", Detail: warning, Todo: "see lucius attention"})
	}
	return checks
}

// mostSkew is how far the clocks may differ. The Date of a response has a precision of a
// second.
const mostSkew = 5 * time.Second

// skew returns how far the server's clock is at least ahead of that of this host, for the arguments of [clocks]. It is negative
// if the clock is behind.
func skew(sent, got time.Time, date string) (ahead time.Duration, known bool) {
	at, err := http.ParseTime(date)
	if err != nil {
		return 0, false
	}
	return max(at.Sub(got), min(at.Add(time.Second).Sub(sent), 0)), true // The Date is rounded down.
}

// clocks compares the server's clock, in the Date of a response, with that of this host, which
// sent the request and got the response at these times.
func clocks(sent, got time.Time, date string) Check {
	ahead, known := skew(sent, got, date)
	if !known {
		return Check{Name: "clock", OK: true, Detail: "the server does not report its time"}
	}
	if off := ahead.Abs(); off > mostSkew {
		order := "ahead of"
		if ahead < 0 {
			order = "behind"
		}
		return Check{
			Name: "clock", Detail: fmt.Sprintf("the server's clock is %s %s that of this host", short(off), order),
			Todo: "synchronise both clocks: deadlines and tokens depend on them",
		}
	}
	return Check{Name: "clock", OK: true, Detail: "within " + short(mostSkew) + " of this host's"}
}

// checkToken checks that the token is valid, and says what it may do.
func (s *session) checkToken(ctx context.Context) []Check {
	who, err := call[api.Identity](s.GetIdentity(ctx))
	switch {
	case err != nil:
		return []Check{failedCheck("token", err)}
	case len(who.Grants) == 0:
		return []Check{{Name: "token", Detail: "it is valid, but has no role", Todo: "ask for a token with a role: see docs/run/access.md"}}
	}
	detail := "valid, of " + who.Name
	if who.Origin == api.IdentityOriginLocal {
		detail = "not required; without one you are " + who.Name
	}
	return []Check{{Name: "token", OK: true, Detail: detail + ", with " + grantsText(who.Grants)}, s.checkVersion(ctx)}
}

// grantsText says what the grants allow: the roles, and for which tenants and services.
func grantsText(grants []api.Grant) string {
	var scopes, texts []string
	roles := map[string][]string{}
	for i := range grants {
		scope := "tenants " + strings.Join(grants[i].Tenants, ", ")
		switch {
		case slices.Contains(grants[i].Tenants, "*"):
			scope = "all tenants"
		case len(grants[i].Tenants) == 1:
			scope = "tenant " + grants[i].Tenants[0]
		}
		if services := grants[i].Services; len(services) > 0 {
			scope += " and " + map[bool]string{true: "service ", false: "services "}[len(services) == 1] + strings.Join(services, ", ")
		}
		if roles[scope] == nil {
			scopes = append(scopes, scope)
		}
		roles[scope] = append(roles[scope], string(grants[i].Role))
	}
	for _, scope := range scopes {
		texts = append(texts, strings.Join(roles[scope], ", ")+" for "+scope)
	}
	return strings.Join(texts, "; ")
}

// buildInfo matches the server's version in its metrics.
var buildInfo = regexp.MustCompile(`(?m)^lucius_build_info\{[^}]*version="([^"]*)"`)

// checkVersion reads the server's version from its metrics.
func (s *session) checkVersion(ctx context.Context) Check {
	response, err := s.GetMetrics(ctx)
	if err != nil {
		return failedCheck("version", unreachable(err))
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return failedCheck("version", unreachable(err))
	}
	version := "not shown to this token"
	if found := buildInfo.FindSubmatch(text); found != nil && response.StatusCode == http.StatusOK {
		version = string(found[1])
	}
	return Check{Name: "version", OK: true, Detail: plain(version)}
}
