package observability

import (
	"encoding/json"
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

// situations are those that the server's tests bring about, with the alerts that fire.
var situations = map[string][]string{
	"NormalHour": nil, "NothingToDo": nil, "FewWorkers": nil, "LongLivedTLS": nil, "OneLine": nil,
	"PausedNoRelay":  {"LuciusRoleMissing"},
	"NoWorker":       {"LuciusServiceWithoutWorker"},
	"FailingService": {"LuciusServiceFailing"},
	"NoRelay":        {"LuciusRoleMissing", "LuciusRelayStuck"},
	"DiskNearlyFull": {"LuciusDiskNearlyFull"},
	"SlowStore":      {"LuciusSweeperLate"},
	"NothingPurged":  {"LuciusRoleMissing", "LuciusRetentionBehind"},
	"StoreThatHangs": {"LuciusLoopStandsStill"},
	"StoreThatFails": {"LuciusLoopFailing"},
	"BlockedLine":    {"LuciusLineBlocked"},
	"ExpiredJobs":    {"LuciusJobsExpire"},
	"MissedSchedule": {"LuciusScheduleLost"},
	"LateSchedule":   {"LuciusScheduleLate"},
	"StuckJob":       {"LuciusJobStuck"},
	"RepairedJob":    {"LuciusDefectRepaired"},
	"BadProtocol":    {"LuciusFilesRefused"},
	"RefusedCommand": {"LuciusInboxRefused"},
	"WaitingCommand": {"LuciusInboxWaits"},
	"InboxThatHangs": {"LuciusLoopStandsStill"},
	"ShortLivedTLS":  {"LuciusCertificateExpires"},
}

// amongOthers are situations in which more alerts may fire. With a full disk loops may
// fail. Of the others some seconds are recorded as ten minutes, in which loops make few
// passes: they take place on Azure, whose fakes are on the wire and not on virtual time.
var amongOthers = map[string][]string{
	"DiskFull":   {"LuciusStoreOutage", "LuciusDiskNearlyFull"},
	"ClockAhead": {"LuciusClockSkew"}, "AccountAway": {"LuciusStoreOutage"},
	"TopicMissing": {"LuciusCircuitOpen"}, "DeadLetters": {"LuciusDeadLetters"},
}

// Each alert fires in its situation, and alone but for those that belong to it; none
// fires in a normal hour.
func TestAlerts(t *testing.T) {
	t.Parallel()
	rules, recorded, covered := alerts(t), record(t), map[string]bool{}
	if len(recorded) != len(situations)+len(amongOthers) {
		t.Errorf("%d situations are recorded", len(recorded))
	}
	for name, h := range recorded {
		firing := h.firing(t, rules)
		want, known := situations[name]
		if !known {
			want, known = amongOthers[name]
			firing = slices.DeleteFunc(firing, func(alert string) bool { return !slices.Contains(want, alert) })
		}
		if !known || !slices.Equal(firing, append([]string{}, want...)) {
			t.Errorf("%s: %v fire, want %v", name, firing, want)
		}
		for _, alert := range want {
			covered[alert] = true
		}
	}
	for i := range rules {
		if rules[i].Annotations["summary"] == "" || rules[i].Annotations["runbook"] == "" || !covered[rules[i].Alert] {
			t.Errorf("%s has no summary, no runbook, or no situation", rules[i].Alert)
		}
	}
	late := recorded["SlowStore"].with(value{model.Metric{"__name__": "lucius_sweeper_late_seconds", "instance": "api:8080"}, 0})
	if firing := late.firing(t, rules); !slices.Contains(firing, "LuciusSweeperLate") {
		t.Errorf("next to a process that does not sweep, %v fire", firing)
	}
	dashboardHasData(t, recorded["NormalHour"])
}

// tenMinutes returns a history in which these loops make passes, and Prometheus reads nothing else.
func tenMinutes(loops ...model.LabelValue) history {
	h := make(history, 20)
	for i := range h {
		h[i] = scrape{at: time.Unix(1_700_000_000, 0).Add(time.Duration(i) * interval), values: map[string]value{}}
		for _, loop := range loops {
			metric := model.Metric{"__name__": "lucius_loop_pass_seconds_count", "loop": loop}
			h[i].values[metric.String()] = value{metric, float64(i)}
		}
	}
	return h
}

// No series is about a process that does not run.
func TestAlerts_OfRolesThatNoProcessHas(t *testing.T) {
	t.Parallel()
	rules := alerts(t)
	for missing, h := range map[string]history{
		"a process":   tenMinutes(),
		"the sweeper": tenMinutes("relay"),
		"the relay":   tenMinutes("sweeper"),
	} {
		if firing := h.firing(t, rules); !slices.Equal(firing, []string{"LuciusRoleMissing"}) {
			t.Errorf("without %s %v fire", missing, firing)
		}
	}
}

// with returns the history with more series, which are constant.
func (h history) with(series ...value) history {
	h = slices.Clone(h)
	for i := range h {
		h[i].values = maps.Clone(h[i].values)
		for _, one := range series {
			h[i].values[one.metric.String()] = one
		}
	}
	return h
}

// What a process counted before its first scrape is no increase.
func TestAlerts_OfCountsBeforeTheFirstScrape(t *testing.T) {
	t.Parallel()
	rules := alerts(t)
	h := tenMinutes("relay", "sweeper").with(
		value{model.Metric{"__name__": "lucius_schedule_fires_total", "outcome": "missed"}, 5},
		value{model.Metric{"__name__": "lucius_schedule_fires_total", "outcome": "refused"}, 0},
		value{model.Metric{"__name__": "lucius_reconciler_repaired_total"}, 5},
		value{model.Metric{"__name__": "lucius_expired_total"}, 50},
	)
	for age, want := range map[time.Duration][]string{
		time.Second: {"LuciusJobsExpire", "LuciusScheduleLost", "LuciusDefectRepaired"}, 2 * time.Hour: {},
	} {
		started := float64(h[0].at.Add(-age).Unix())
		firing := h.with(value{model.Metric{"__name__": "process_start_time_seconds"}, started}).firing(t, rules)
		if !slices.Equal(firing, want) {
			t.Errorf("of a process that is %s old %v fire, want %v", age, firing, want)
		}
	}
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
