package observability

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// alerts returns the rules.
func alerts(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, failures := rulefmt.ParseFile("alerts.yaml", false, model.UTF8Validation, parser.NewParser(parser.Options{}),
		slog.New(slog.DiscardHandler))
	if len(failures) > 0 {
		t.Fatal(failures)
	}
	var rules []rulefmt.Rule
	for _, group := range groups.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules
}

// fires reports whether the alert fires at some time: some series is there at each
// evaluation for as long as the rule waits.
func fires(rule *rulefmt.Rule, result promql.Matrix) bool {
	for _, series := range result {
		since := int64(0)
		for i, point := range series.Floats {
			if i == 0 || point.T-series.Floats[i-1].T > interval.Milliseconds() {
				since = point.T
			}
			if point.T-since >= time.Duration(rule.For).Milliseconds() {
				return true
			}
		}
	}
	return false
}

// firing returns the names of the alerts that fire in the history.
func (h history) firing(t *testing.T, rules []rulefmt.Rule) []string {
	t.Helper()
	names := []string{}
	for i := range rules {
		if fires(&rules[i], h.query(t, rules[i].Expr)) {
			names = append(names, rules[i].Alert)
		}
	}
	return names
}

// quiet is how many scrapes there are of a normal time, 40 minutes, and unquiet of what
// comes then.
const quiet, unquiet = 80, 80

// normal is a time in which a job is done between two scrapes.
func normal(s *server) history {
	h := history{s.scrape()}
	passed := h[0]
	for len(h) < quiet {
		s.submit()
		s.work(false)
		h = append(h, s.scrape())
		if len(h)%10 == 0 { // A scrape is 30 s after the last one only in the history: the loops must have passed.
			for !loopsPassed(passed, h[len(h)-1]) {
				time.Sleep(50 * time.Millisecond)
				h[len(h)-1] = s.scrape()
			}
			passed = h[len(h)-1]
		}
	}
	return h
}

// loops are those whose standstill is an alert.
var loops = []string{"relay", "sweeper", "retention", "reconciler"}

func passes(loop string) string { return fmt.Sprintf(`lucius_loop_pass_seconds_count{loop=%q}`, loop) }

func loopsPassed(before, after scrape) bool {
	return !slices.ContainsFunc(loops, func(loop string) bool { return after[passes(loop)].is <= before[passes(loop)].is })
}

// goesOn continues the history with its last scrape. Loops pass, and some series change
// as time passes.
func (h history) goesOn(changes func(elapsed time.Duration) map[string]float64) history {
	last := h[len(h)-1]
	for i := 1; i <= unquiet; i++ {
		next := map[string]float64{}
		for _, loop := range loops {
			next[passes(loop)] = last[passes(loop)].is + float64(i)
		}
		maps.Copy(next, changes(time.Duration(i)*interval))
		h = append(h, last.with(next))
	}
	return h
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	rules := alerts(t)
	s := start(t)
	h := normal(s)
	if firing := h.firing(t, rules); len(firing) > 0 {
		t.Errorf("in a normal time %v fire", firing)
	}
	last, covered := h[len(h)-1], map[string]bool{}
	expect := func(situation string, h history, want ...string) {
		t.Helper()
		if firing := h.firing(t, rules); !slices.Equal(firing, want) {
			t.Errorf("%s: %v fire, want %v", situation, firing, want)
		}
		for _, name := range want {
			covered[name] = true
		}
	}
	is := func(name string, value float64) func(time.Duration) map[string]float64 {
		return func(time.Duration) map[string]float64 { return map[string]float64{name: value} }
	}
	grows := func(name string, each float64) func(time.Duration) map[string]float64 {
		if _, known := last[name]; !known {
			t.Errorf("there is no %s", name)
		}
		return func(elapsed time.Duration) map[string]float64 {
			return map[string]float64{name: last[name].is + each*float64(elapsed/interval)}
		}
	}
	expect("nothing happens", h.goesOn(is("lucius_jobs_stuck", 0)))
	reserve := last["lucius_store_reserve_bytes"].is
	for situation, test := range map[string]struct {
		changes func(time.Duration) map[string]float64
		want    []string
	}{
		"an open circuit":           {is("lucius_circuits_open", 1), []string{"LuciusCircuitOpen"}},
		"rows that no relay takes":  {is("lucius_outbox_oldest_pending_seconds", 400), []string{"LuciusRelayStuck"}},
		"rows that a pause holds":   {changesOf("lucius_outbox_oldest_pending_seconds", 400, "lucius_pauses_active", 1), nil},
		"a store that takes none":   {grows(`lucius_store_requests_total{operation="commit", outcome="unreachable"}`, 30), []string{"LuciusStoreOutage"}},
		"an account out of service": {is("lucius_store_outage_seconds", 60), []string{"LuciusStoreOutage"}},
		"a disk nearly full":        {is("lucius_store_free_bytes", 3*reserve), []string{"LuciusDiskNearlyFull"}},
		"a clock that is ahead":     {is("lucius_clock_skew_seconds", 60), []string{"LuciusClockSkew"}},
		"a clock that is behind":    {is("lucius_clock_skew_seconds", -5), []string{"LuciusClockSkew"}},
		"a sweeper that is late":    {is("lucius_sweeper_late_seconds", 45), []string{"LuciusSweeperLate"}},
		"a stuck reconciler":        {is(passes("reconciler"), last[passes("reconciler")].is), []string{"LuciusLoopStandsStill"}},
		"a loop that fails":         {grows(`lucius_loop_failures_total{loop="census"}`, 1), []string{"LuciusLoopFailing"}},
		"a stuck job":               {is("lucius_jobs_stuck", 1), []string{"LuciusJobStuck"}},
		"a repaired defect":         {is("lucius_reconciler_repaired_total", 1), []string{"LuciusDefectRepaired"}},
		"dead letters":              {is("lucius_bus_dead_letters", 2), []string{"LuciusDeadLetters"}},
		"a refused protocol":        {is("lucius_protocols_refused", 1), []string{"LuciusFilesRefused"}},
		"a certificate of 13 days": {
			is("lucius_tls_certificate_expires_timestamp_seconds", float64(h.end().AddDate(0, 0, 13).Unix())),
			[]string{"LuciusCertificateExpires"},
		},
		"a certificate of 90 days": {
			is("lucius_tls_certificate_expires_timestamp_seconds", float64(h.end().AddDate(0, 0, 90).Unix())), nil,
		},
	} {
		expect(situation, h.goesOn(test.changes), test.want...)
	}

	failing := slices.Clone(h)
	for range unquiet { // The other loops pass as before.
		s.submit()
		s.work(true)
		next := map[string]float64{}
		for _, loop := range loops {
			next[passes(loop)] = failing[len(failing)-1][passes(loop)].is + 1
		}
		failing = append(failing, s.scrape().with(next))
	}
	expect("a service that fails", failing, "LuciusServiceFailing")

	s.submit()
	waits := slices.Clone(failing[:1])
	waits[0] = s.scrape()
	const oldest = `lucius_work_oldest_seconds{service="ocr", step_type="OCR"}`
	age := waits[0][oldest].is
	if age <= 0 {
		t.Errorf("the oldest directive waits for %g s", age)
	}
	expect("no worker", waits.goesOn(func(elapsed time.Duration) map[string]float64 {
		return map[string]float64{oldest: age + elapsed.Seconds()}
	}), "LuciusServiceWithoutWorker")
	const running = `lucius_work_items{service="ocr", state="running", step_type="OCR"}`
	expect("few workers", waits.goesOn(func(elapsed time.Duration) map[string]float64 {
		return map[string]float64{oldest: age + elapsed.Seconds(), running: 1}
	}))

	for i := range rules {
		if rules[i].Annotations["summary"] == "" || rules[i].Annotations["runbook"] == "" || !covered[rules[i].Alert] {
			t.Errorf("%s has no summary, no runbook, or no situation", rules[i].Alert)
		}
	}
	dashboardHasData(t, h)
}

// changesOf returns constant values of two series.
func changesOf(a string, is float64, b string, too float64) func(time.Duration) map[string]float64 {
	return func(time.Duration) map[string]float64 { return map[string]float64{a: is, b: too} }
}

// dashboardHasData checks that each query of the dashboard has data at the end.
func dashboardHasData(t *testing.T, h history) {
	t.Helper()
	text, err := os.ReadFile("dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	queries := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			queries++
			result := h.query(t, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			if !slices.ContainsFunc(result, func(series promql.Series) bool {
				return len(series.Floats) > 0 && series.Floats[len(series.Floats)-1].T == h.end().UnixMilli()
			}) {
				t.Errorf("%s: %s has no data", panel.Title, target.Expr)
			}
		}
	}
	if queries < 30 {
		t.Errorf("the dashboard has %d queries", queries)
	}
}
