package diagnosis_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
	"github.com/lucius-project/lucius/internal/diagnosis/diagnosistest"
)

func ago(d time.Duration) api.Time { return api.NewTime(now.Add(-d)) }

// readOut is a finding as it is read.
func readOut(f *diagnosis.Finding) string {
	word := func(form diagnosis.Form, at time.Time) string {
		switch form {
		case diagnosis.Ago:
			return diagnosis.Duration(now.Sub(at)) + " ago"
		case diagnosis.For:
			return "for " + diagnosis.Duration(now.Sub(at))
		default:
			return "in " + diagnosis.Duration(at.Sub(now))
		}
	}
	text := f.Level + " " + f.Subject + " " + f.Text.With(word)
	for _, note := range f.Notes {
		text += " · " + note.With(word)
	}
	for _, action := range append(f.Actions, f.Mark) {
		text += " [" + action.Text + ": " + action.Command + "]"
	}
	return text
}

func TestFindings_SayWhatIsWrong(t *testing.T) {
	t.Parallel()
	busy := diagnosistest.OCRWork(now, 3000, 12*time.Minute, 2*time.Minute)
	busy.Running, busy.Attempts.LastMinute = 8, api.Rate{Count: 120, PerSecond: 2}
	busy.BacklogByMinute = slices.Repeat([]int{3000}, diagnosis.HistoryMinutes)
	grows := diagnosistest.OCRWork(now, 900, time.Minute, time.Second)
	grows.BacklogByMinute = diagnosistest.Minutes(300, 360, 420, 480, 540, 600, 660, 720, 780, 840, 900)
	failing := api.Service{Service: "embed", StepType: "EMBED", DurationSeconds: api.Percentiles{Count: 9, P95: 41}}
	failing.Attempts.ByMinute = &api.MinuteCounts{
		Counts: diagnosistest.Minutes(100, 100, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10),
		Failed: diagnosistest.Minutes(2, 2, 0, 0, 0, 0, 0, 0, 9, 9, 10, 10),
	}
	failing.TopError = api.StepError{ErrorCode: "vendor_503", Count: 54}
	other := diagnosistest.OCRWork(now, 4, 3*time.Minute, 0)
	other.StepType = "OCR2"
	shrinks := func(oldest, waited time.Duration) api.Service {
		of := diagnosistest.OCRWork(now, 40, oldest, time.Second)
		of.BacklogByMinute, of.QueueWaitSeconds = slices.Repeat([]int{40}, diagnosis.HistoryMinutes), api.Percentiles{Count: 90, P95: waited.Seconds()}
		return of
	}
	late, stalled := 45.0, 400.0
	for name, test := range map[string]struct {
		of   diagnosis.Situation
		want []string
	}{
		"nothing": {},
		"a service that keeps up": {of: diagnosis.Situation{Services: []api.Service{
			diagnosistest.OCRWork(now, 20, 2*time.Second, time.Second), {Service: "index", StepType: "INDEX"},
		}}},
		"a worker that pauses for breath": {of: diagnosis.Situation{Services: []api.Service{diagnosistest.OCRWork(now, 20, 20*time.Second, 30*time.Second)}}},
		"no worker since": {
			of: diagnosis.Situation{Services: []api.Service{diagnosistest.OCRWork(now, 3000, 251*time.Second, 4*time.Minute)}},
			want: []string{"bad ocr: 3,000 directives wait, and no worker has polled for 4 min · the oldest waits for 4 min 11 s · " +
				"the last one was ocr-7 [Show the service: lucius services --service ocr] [Show the jobs: lucius jobs list --service ocr] " +
				"[Pause ocr…: lucius pause --service ocr]"},
		},
		"no worker within the hour": {
			of:   diagnosis.Situation{Services: []api.Service{diagnosistest.OCRWork(now, 1, 2*time.Minute, 0)}},
			want: []string{"bad ocr: 1 directive waits, and no worker has polled within the hour · the oldest waits for 2 min"},
		},
		"workers that are busy": {
			of: diagnosis.Situation{Services: []api.Service{busy}},
			want: []string{"minor ocr: 3,000 directives wait, the oldest for 12 min · 1 worker, 8 under way · " +
				"done in about 25 min if nothing new arrives"},
		},
		"a backlog that grows": {
			of:   diagnosis.Situation{Services: []api.Service{grows}},
			want: []string{"minor ocr: 900 directives wait, up by 600 within 10 minutes · the oldest waits for 1 min"},
		},
		"a backlog that shrinks": {
			of:   diagnosis.Situation{Services: []api.Service{shrinks(3*time.Minute, 6*time.Minute)}},
			want: []string{"minor ocr: 40 directives wait, the oldest for 3 min · "},
		},
		"a backlog that has shrunk":    {of: diagnosis.Situation{Services: []api.Service{shrinks(2*time.Minute, 6*time.Minute)}}},
		"a backlog that was never old": {of: diagnosis.Situation{Services: []api.Service{shrinks(3*time.Minute, 4*time.Minute)}}},
		"no ACK on Service Bus": {
			of:   diagnosis.Situation{Overview: &api.Overview{Bus: api.BusServiceBus}, Services: []api.Service{diagnosistest.OCRWork(now, 5, 6*time.Minute, 0)}},
			want: []string{"bad ocr: 5 directives wait for an ACK, and nothing runs"},
		},
		"workers on Service Bus": {
			of: diagnosis.Situation{Overview: &api.Overview{Bus: api.BusServiceBus}, Services: []api.Service{diagnosistest.OCRWork(now, 5, 2*time.Minute, 0)}},
		},
		"errors": {
			of: diagnosis.Situation{Services: []api.Service{failing}},
			want: []string{"bad embed has failed 38 % of its attempts for 3 min 30 s · 38 of 100 within 10 minutes, before that 2.0 % · " +
				"54 steps are retried after vendor_503 · p95 41 s · " +
				"last success 2 minutes ago [See why: lucius failures --service embed --include-retrying] [Pause embed…: lucius pause --service embed]"},
		},
		"pauses": {
			of: diagnosis.Situation{Services: []api.Service{
				{Service: "ocr", Held: 7, HeldBy: []api.HeldBy{{PauseID: "service:ocr", Count: 7}}},
			}, Pauses: []api.Pause{
				{PauseID: "tenant:acme", TenantID: "acme", State: api.PauseStatePaused, Actor: "ops-1", Reason: "dispute", CreatedAt: ago(130 * time.Minute), Until: ago(-time.Hour)},
				{PauseID: "service:ocr", Service: "ocr", State: api.PauseStatePaused, CreatedAt: ago(time.Minute)},
				{PauseID: "lane:3", State: api.PauseStateRamping, CreatedAt: ago(time.Hour)},
			}},
			want: []string{
				"warn Service ocr is paused for 1 min · 7 directives wait · by",
				"warn Tenant acme is paused for 2 h 10 min · resumes by itself in 1 h · by ops-1: “dispute” [Resume…: lucius resume --tenant acme] " +
					"[Show the jobs: lucius jobs list --tenant acme]",
			},
		},
		"closed services": {
			of: diagnosis.Situation{Services: []api.Service{{Service: "ocr", StepType: "OCR", Backlog: 7}}, Limits: []api.StartLimit{
				{ID: "service:embed", Service: "embed", Starts: &api.Starts{Count: 1, Window: "1s"}},
				{
					ID: "service:ocr", Service: "ocr",
					Closed: &api.Closure{Until: ago(-5 * time.Minute), Since: ago(time.Minute), By: "ops-1", Reason: "503"},
				},
				{
					ID: "service:ocr,step_type:OCR,tenant:a", Service: "ocr", StepType: "OCR", TenantID: "a",
					Closed: &api.Closure{Until: ago(-time.Hour), Since: ago(time.Minute), By: "w-7", Reason: "429"},
				},
			}},
			want: []string{
				"warn Service ocr is closed, and opens in 5 min · 7 directives wait · by ops-1: “503” · closed for 1 min " +
					"[Open…: lucius limit open service:ocr] [Show the limits: lucius limit list]",
				"warn Service ocr, step type OCR, for tenant a is closed, and opens in 1 h · by w-7: “429” · closed for 1 min",
			},
		},
		"what a pause holds back where": {
			of: diagnosis.Situation{Services: []api.Service{
				{Service: "ocr", HeldBy: []api.HeldBy{{PauseID: "tenant:acme", Count: 7}, {PauseID: "all", Count: 9}}},
				{Service: "embed", HeldBy: []api.HeldBy{{PauseID: "tenant:acme", Count: 2}}},
			}, Pauses: []api.Pause{
				{PauseID: "tenant:acme", TenantID: "acme", State: api.PauseStatePaused, CreatedAt: ago(time.Hour)},
				{PauseID: "all", State: api.PauseStatePaused, CreatedAt: ago(time.Hour)},
			}},
			want: []string{
				"warn Tenant acme is paused for 1 h · 9 directives wait: 7 at ocr, 2 at embed · by", "warn Everything is paused for 1 h · 9 directives wait at ocr · by",
			},
		},
		"a service whose directives are all held by a pause": {
			of: diagnosis.Situation{Overview: &api.Overview{Bus: api.BusQueue}, Services: []api.Service{
				{Service: "ocr", Held: 391, BacklogByMinute: diagnosistest.Minutes(391), HeldBy: []api.HeldBy{{PauseID: "tenant:acme", Count: 391}}},
			}},
		},
		"pauses of a server that knows what they hold back": {
			of: diagnosis.Situation{Pauses: []api.Pause{
				{PauseID: "tenant:acme", TenantID: "acme", State: api.PauseStatePaused, CreatedAt: ago(time.Hour), Waiting: new(1)},
				{PauseID: "lane:3", Lane: new(int32(3)), State: api.PauseStatePaused, CreatedAt: ago(time.Hour), Waiting: new(40)},
			}},
			want: []string{"warn Lane 3 is paused for 1 h · 40 directives wait · by", "warn Tenant acme is paused for 1 h · 1 directive waits · by"},
		},
		"workers that poll for nothing that exists": {
			of: diagnosis.Situation{Unmatched: []api.UnmatchedWorker{
				{Owner: "w-1", Services: []string{"extrakt"}, LastPollAt: ago(time.Minute)}, {Owner: "w-2", StepTypes: []string{"OCRR"}},
			}},
			want: []string{"minor Worker w-1 polls, but no protocol has extrakt · its last poll 1 min ago · 1 other worker does the like [Show the services: lucius services]"},
		},
		"one paused job": {
			of:   diagnosis.Situation{Overview: &api.Overview{Jobs: map[string]int{"PAUSED": 1}}},
			want: []string{"warn 1 job is paused on its own, until it is resumed [Show the jobs: lucius jobs list --state PAUSED]"},
		},
		"a job that is about to be paused": {
			of:   diagnosis.Situation{Overview: &api.Overview{Jobs: map[string]int{"PAUSING": 1}}},
			want: []string{"warn 1 job is paused on its own, until it is resumed [Show the jobs: lucius jobs list --state PAUSING]"},
		},
		"the server": {
			of: diagnosis.Situation{Unready: "The store does not answer.", Warnings: []string{"dispatch of all is PAUSED: x", "2 replies are dead letters", "1 command of the inbox was refused"}, Overview: &api.Overview{
				Jobs: map[string]int{"PAUSED": 3, "PAUSING": 1}, Stuck: api.StuckCount{Count: 1, Checked: 50}, OldestPendingSeconds: &late,
			}},
			want: []string{
				"bad The server is not ready: The store does not answer.", "bad 1 job stands still and cannot continue without help",
				"minor The outbox is late: its oldest directive has been due for 45 s",
				"minor The server warns: 2 replies are dead letters [Show the dead letters: lucius azure dead-letters list]",
				"minor The server warns: 1 command of the inbox was refused [Show the inbox: lucius inbox list]",
				"warn 4 jobs are paused one by one, until they are resumed [Show the 3 PAUSED: lucius jobs list --state PAUSED] [Show the 1 PAUSING: " +
					"lucius jobs list --state PAUSING]",
			},
		},
		"a stalled outbox": {
			of:   diagnosis.Situation{Overview: &api.Overview{OldestPendingSeconds: &stalled}},
			want: []string{"bad The outbox is late: its oldest directive has been due for 6 min 40 s"},
		},
		"circuits": { // They explain an outbox that is late.
			of: diagnosis.Situation{Overview: &api.Overview{OldestPendingSeconds: &stalled, Circuits: []api.Circuit{
				{Name: "global-bus-p3", State: "open", Reason: "not found", Since: ago(time.Minute)}, {Name: "bus", State: "half-open", Since: ago(time.Second)},
			}}},
			want: []string{
				"bad The whole bus is out of service, its circuit half-open, for 1.0 s ·  · directives wait, and spend no retry budget · " +
					"Topic global-bus-p3 is out of service, its circuit open, for 1 min · not found [Show the outbox",
			},
		},
		"circuits of one reason hold what waits for an ACK": {
			of: diagnosis.Situation{Services: []api.Service{diagnosistest.OCRWork(now, 5, 6*time.Minute, 0)}, Overview: &api.Overview{
				Bus: api.BusServiceBus, Jobs: map[string]int{"DISPATCHING": 9}, Circuits: []api.Circuit{
					{Name: "p3", State: "open", Reason: "throttled", Since: ago(time.Minute)},
					{Name: "p4", State: "open", Reason: "throttled", Since: ago(time.Second)},
					{Name: "p5", State: "open", Reason: "not found", Since: ago(time.Second)},
				},
			}},
			want: []string{
				"bad Topic p3 is out of service, its circuit open, for 1 min · throttled · 9 jobs wait for dispatch, and none spends its retry budget · " +
					"Topic p4 is out of service, its circuit open, for 1.0 s · ocr: 5 directives wait for an ACK, and nothing runs [Show the outbox",
				"bad Topic p5 is out of service, its circuit open, for 1.0 s · not found",
			},
		},
		"a service that fails with one error, for good and not": {
			of: diagnosis.Situation{
				Services: []api.Service{failing, diagnosistest.OCRWork(now, 3, 2*time.Minute, 0), other},
				Tenants: []diagnosis.TenantSituation{{Failures: api.FailureList{Groups: []api.FailureGroup{
					{
						Service: "embed", StepType: "EMBED", ErrorCode: "vendor_503", Count: 20, FirstAt: ago(time.Hour), LastAt: ago(time.Minute),
						SampleMessage: "no capacity", TenantCount: 7, Tenants: []api.FailureTenant{{TenantID: "acme", Count: 12}, {TenantID: "o", Count: 3}},
					},
					{Service: "embed", StepType: "EMBED2", ErrorCode: "vendor_503", Count: 30, FirstAt: ago(2 * time.Hour), LastAt: ago(2 * time.Minute)},
					{Service: "embed", ErrorCode: "bad_text", Count: 2, FirstAt: ago(6 * time.Hour), LastAt: ago(5 * time.Hour), TenantCount: 1, Tenants: []api.FailureTenant{{TenantID: "o", Count: 2}}},
				}}}},
			},
			want: []string{
				"bad embed has failed 38 % of its attempts for 3 min 30 s · 38 of 100 within 10 minutes, before that 2.0 % · " +
					"54 steps are retried after vendor_503 · p95 41 s · last success 2 minutes ago · 50 jobs failed for good at embed: vendor_503 · " +
					"first 2 h ago · last 1 min ago · “no capacity” [See why: lucius failures --service embed --include-retrying] " +
					"[Pause embed…: lucius pause --service embed] [Retry 50…: lucius retry --service embed --code vendor_503] ",
				"bad ocr OCR: 3 directives wait, and no worker has polled within the hour · the oldest waits for 2 min · " +
					"ocr OCR2: 4 directives wait, and no worker has polled within the hour · the oldest waits for 3 min [Show the service",
				"minor 2 jobs failed for good at embed: bad_text · first 6 h ago · last 5 h ago · all of tenant o",
			},
		},
		"lines that failed jobs block": {
			of: diagnosis.Situation{Tenants: []diagnosis.TenantSituation{
				{Tenant: "acme", Blocked: api.LinePage{NextPageToken: "more", Lines: []api.Line{
					{LineID: "l1", OrderKey: "mail@example.com", Waiting: 40, Since: ago(time.Hour)}, {LineID: "l2", Waiting: 1, Since: ago(3 * time.Hour)}, {LineID: "l3"},
				}}},
				{Tenant: "o", Blocked: api.LinePage{Lines: []api.Line{{LineID: "l4"}}}},
				{Tenant: "none so far", Blocked: api.LinePage{NextPageToken: "more"}},
			}},
			want: []string{
				"bad At least 3 lines are blocked by a failed job; at least 41 jobs wait, of tenant acme · the oldest has been blocked for 3 h · " +
					"rerun the failed job, or release its line: the next job then begins without it [Show the lines: lucius lines --tenant acme --state blocked]",
				"bad 1 line is blocked by a failed job, of tenant o · rerun the failed job, or release its line: the next job then begins without it " +
					"[Show the line: lucius lines show l4]",
			},
		},
		"more blocked lines than a page has": {
			of: diagnosis.Situation{
				Overview: &api.Overview{Lines: api.LineCounts{Blocked: 5, BlockedSince: ago(2 * time.Hour)}},
				Tenants:  []diagnosis.TenantSituation{{Blocked: api.LinePage{NextPageToken: "more"}}},
			},
			want: []string{
				"bad At least 5 lines are blocked by a failed job · the oldest has been blocked for 2 h · rerun the failed job, or release its " +
					"line: the next job then begins without it [Show the lines: lucius lines --state blocked]",
			},
		},
		"what schedules lost": {
			of: diagnosis.Situation{Tenants: []diagnosis.TenantSituation{
				{Lost: api.ScheduleLossPage{Schedules: []api.ScheduleLosses{
					{
						TenantID: "acme", Name: "nightly", Missed: 2, Refused: 1, FailuresInRow: 3, Since: ago(26 * time.Hour), LastFor: ago(2 * time.Hour),
						Detail: "was not fired in time",
					},
					{TenantID: "o", Name: "hourly", Refused: 1, Since: ago(5 * time.Hour), LastFor: ago(5 * time.Hour)},
				}}},
			}},
			want: []string{
				"bad Schedule nightly missed 2 occurrences and had 1 refused occurrence within a day, for tenant acme · the last was due 2 h ago: " +
					"“was not fired in time” · none has been fired for 26 h [Show the schedule: lucius schedules fires acme/nightly]",
				"minor Schedule hourly had 1 refused occurrence within a day, for tenant o · the last was due 5 h ago · a later one was fired " +
					"[Show the schedule: lucius schedules fires o/hourly]",
			},
		},
		"what many schedules lost": {
			of: diagnosis.Situation{Tenants: []diagnosis.TenantSituation{
				{Tenant: "acme", Lost: api.ScheduleLossPage{NextPageToken: "more", Schedules: []api.ScheduleLosses{
					{Name: "a", Missed: 1, FailuresInRow: 1}, {Name: "b", Missed: 1200},
				}}},
				{Lost: api.ScheduleLossPage{NextPageToken: "none so far"}},
			}},
			want: []string{
				"bad At least 2 schedules missed 1,201 occurrences within a day, for tenant acme · 1 schedule has fired none since " +
					"[Show the schedules: lucius schedules lost --tenant acme]",
			},
		},
		"failures": {
			of: diagnosis.Situation{Tenants: []diagnosis.TenantSituation{{Tenant: "acme", Failures: api.FailureList{Groups: []api.FailureGroup{
				{Service: "ocr", StepType: "OCR", ErrorCode: "bad_scan", Count: 214, FirstAt: ago(2 * time.Hour), LastAt: ago(time.Minute)},
				{Service: "ocr", ErrorCode: "old", Count: 900, LastAt: ago(5 * time.Hour)}, {ErrorCode: "rerun", Count: 9, Resolved: true},
				{ErrorCode: "a", Count: 5}, {ErrorCode: "b", Count: 4}, {ErrorCode: "c", Count: 3}, {ErrorCode: "d", Count: 2}, {ErrorCode: "e", Count: 1},
			}}, Webhooks: api.WebhookPage{Webhooks: []api.Webhook{{URL: "https://a.example/", LastError: "503", UpdatedAt: ago(time.Minute)}}}}}},
			want: []string{
				"bad 214 jobs failed for good at ocr: bad_scan, of tenant acme · first 2 h ago · last 1 min ago " +
					"[Retry 214…: lucius retry --tenant acme --service ocr --code bad_scan --step-type OCR] " +
					"[Show the jobs: lucius jobs list --tenant acme --service ocr --code bad_scan --state FAILED_FINAL]",
				"minor 900 jobs failed for good at ocr: old", "minor 5 jobs", "minor 4 jobs", "minor 3 jobs",
				"minor 1 webhook was given up without being delivered, of tenant acme · the last 1 min ago · to https://a.example/: 503 [Show the webhooks: lucius webhooks list --tenant acme]",
				"minor 3 jobs failed for good for 2 other reasons [Show all failures: lucius failures --tenant acme]",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.of.Now = now
			var got []string
			known := map[string]bool{}
			for _, f := range diagnosis.Findings(&test.of) {
				got = append(got, readOut(&f))
				if known[f.ID] {
					t.Errorf("two findings have the id %s", f.ID)
				}
				known[f.ID] = true
			}
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestFindings_AreMarkedByOperators(t *testing.T) {
	t.Parallel()
	paused := func(since time.Duration) diagnosis.Situation {
		return diagnosis.Situation{Now: now, Unready: "broken", Pauses: []api.Pause{
			{PauseID: "tenant:acme", TenantID: "acme", State: api.PauseStatePaused, CreatedAt: ago(since)},
		}}
	}
	mark := api.Mark{
		FindingID: "pause:tenant:acme", TenantID: "acme", State: api.MarkStateAcknowledged, Actor: "ops-1", Note: "dispute",
		At: ago(time.Minute), Until: ago(-time.Hour),
	}
	changed := func(change func(*api.Mark)) api.Mark {
		m := mark
		change(&m)
		return m
	}
	const unmarked = "warn Tenant acme is paused for 1 h · by : “” ["
	for name, test := range map[string]struct {
		mark  api.Mark
		since time.Duration
		quiet bool
		want  string
	}{
		"acknowledged": {mark, time.Hour, true, "warn Tenant acme is paused for 1 h · acknowledged by ops-1 1 min ago: “dispute”, returns in 1 h"},
		"snoozed": {
			changed(func(m *api.Mark) { m.State, m.Note = api.MarkStateSnoozed, "" }), time.Hour, true,
			"warn Tenant acme is paused for 1 h · snoozed by ops-1 1 min ago, returns in 1 h",
		},
		"noted":                    {changed(func(m *api.Mark) { m.State = api.MarkStateOpen }), time.Hour, false, "warn Tenant acme is paused for 1 h · noted by ops-1 1 min ago: “dispute” ·"},
		"a mark that has ended":    {changed(func(m *api.Mark) { m.Until = ago(time.Second) }), time.Hour, false, unmarked},
		"a mark of all tenants":    {changed(func(m *api.Mark) { m.TenantID = "" }), time.Hour, false, unmarked},
		"a mark of another pause":  {changed(func(m *api.Mark) { m.FindingID = "pause:tenant:o" }), time.Hour, false, unmarked},
		"a mark of an older pause": {mark, time.Second, false, "warn Tenant acme is paused for 1.0 s · by"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := paused(test.since)
			s.Marks = []api.Mark{test.mark}
			found := diagnosis.Findings(&s)
			open, button := 2, "[Acknowledge…: lucius attention mark pause:tenant:acme --as acknowledged]"
			if test.quiet {
				open, button = 1, "[Reopen…: lucius attention mark pause:tenant:acme --as open]"
			}
			if got := readOut(&found[1]); !strings.HasPrefix(got, test.want) || !strings.HasSuffix(got, button) {
				t.Errorf("got %s, want %s … %s", got, test.want, button)
			}
			if got := len(diagnosis.Open(found)); got != open {
				t.Errorf("%d are open, want %d", got, open)
			}
		})
	}
}

// A mark applies to its finding alone, whatever the names in the finding's id are.
func TestFindings_HaveIDsThatLast(t *testing.T) {
	t.Parallel()
	id := func(tenant, service, code, warning string) (ids string) {
		s := diagnosis.Situation{Now: now, Tenants: []diagnosis.TenantSituation{{
			Tenant: tenant, Failures: api.FailureList{Groups: []api.FailureGroup{{Service: service, ErrorCode: code, Count: 1}}},
		}}}
		if warning != "" {
			s.Warnings, s.Tenants = []string{warning}, nil
		}
		return diagnosis.Findings(&s)[0].ID
	}
	long := strings.Repeat("ä", 200)
	for got, want := range map[string]string{
		id("", "ocr", "bad_scan", ""):    "error:ocr:bad_scan",
		id("", "ocr", "", ""):            "error:ocr",
		id("a@b", "o:c r", "x/y<z>", ""): "error:o%3Ac+r:x%2Fy%3Cz%3E@a%40b",
		id("", "", "", "2 replies wait"): id("", "", "", "317 replies wait"),
	} {
		if got != want {
			t.Errorf("the id is %q, want %q", got, want)
		}
	}
	if a, b := id("", "ocr", long+"1", ""), id("", "ocr", long+"2", ""); a == b || len(a) > api.MaxName {
		t.Errorf("two errors have the ids %q and %q", a, b)
	}
}

// A finding names the last operation about it, and the outcome of that operation's jobs.
func TestFindings_SayWhatWasDone(t *testing.T) {
	t.Parallel()
	retry := api.Operation{
		OperationID: "op-1", Kind: api.OperationKindRetry, State: api.OperationStateDone, Matched: 82, Applied: 81, Caller: "ops-1", CreatedAt: ago(time.Hour),
		Filter: api.OperationFilter{Service: "ocr", ErrorCode: "bad_scan"}, Results: &api.OperationResults{Counted: 81, Succeeded: 54, Failed: 25, Live: 2},
	}
	changed := func(change func(*api.Operation)) api.Operation {
		op := retry
		change(&op)
		return op
	}
	for name, test := range map[string]struct {
		tenant string
		op     api.Operation
		want   string
	}{
		"a retry": {"", retry, "retried 81 jobs 1 h ago by ops-1: 54 succeeded, 25 failed again, 2 still run · first"},
		"a retry that goes on": {"", changed(func(op *api.Operation) {
			op.State, op.Applied, op.Results = api.OperationStateRunning, 3, &api.OperationResults{Counted: 3, Live: 1, Succeeded: 2}
		}), "retried 3 of 82 jobs so far 1 h ago by ops-1: 2 succeeded, 1 still runs · first"},
		"a sample": {"", changed(func(op *api.Operation) {
			op.Results = &api.OperationResults{Counted: 20, Succeeded: 20}
		}), "retried 81 jobs 1 h ago by ops-1: 20 succeeded of the 20 that were looked at · first"},
		"a cancellation of the service's jobs of one tenant": {"acme", changed(func(op *api.Operation) {
			op.Kind, op.Caller, op.Results = api.OperationKindCancel, "", &api.OperationResults{Counted: 81, Cancelled: 80, Failed: 1}
			op.Filter = api.OperationFilter{Service: "ocr", TenantID: "acme"}
		}), "cancelled 81 jobs 1 h ago, of tenant acme: 1 failed, 80 cancelled · first"},
		"results that are not known": {"", changed(func(op *api.Operation) { op.Results = nil }), "retried 81 jobs 1 h ago by ops-1 · first"},
		"jobs that have been purged": {"", changed(func(op *api.Operation) { op.Results = &api.OperationResults{} }), "retried 81 jobs 1 h ago by ops-1 · first"},
		"a retry of another error":   {"", changed(func(op *api.Operation) { op.Filter.ErrorCode = "other" }), ""},
		"a retry of another service": {"", changed(func(op *api.Operation) { op.Filter.Service = "embed" }), ""},
		"a retry of another tenant":  {"acme", changed(func(op *api.Operation) { op.Filter.TenantID = "o" }), ""},
		"a repeat of successes": {"", changed(func(op *api.Operation) {
			op.Filter = api.OperationFilter{Service: "ocr", State: api.JobStateSucceeded}
		}), ""},
		"a retry that matched no job": {"", changed(func(op *api.Operation) { op.Matched = 0 }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			older := changed(func(op *api.Operation) { op.Filter.ErrorCode, op.OperationID = "none", "op-0" })
			s := diagnosis.Situation{Now: now, Operations: []api.Operation{test.op, older}, Tenants: []diagnosis.TenantSituation{{
				Tenant:   test.tenant,
				Failures: api.FailureList{Groups: []api.FailureGroup{{Service: "ocr", ErrorCode: "bad_scan", Count: 25, FirstAt: ago(2 * time.Hour)}}},
			}}}
			last := s.Done()
			if test.want == "" {
				if len(last) != 0 {
					t.Errorf("it names %s", last[0].OperationID)
				}
				return
			}
			if len(last) != 1 || last[0] != &s.Operations[0] {
				t.Fatalf("%d operations are named", len(last))
			}
			got := readOut(&diagnosis.Findings(&s)[0])
			if !strings.Contains(got, test.want) || !strings.Contains(got, "[Show the operation: lucius operations get op-1]") {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

// Hysteresis: a finding starts at its threshold and ends below half of it, so that it does not flap.
func TestServiceFindings_LastUntilHalfOfWhatTheyTake(t *testing.T) {
	t.Parallel()
	minutes := func(counts []int) *api.MinuteCounts {
		by := &api.MinuteCounts{Failed: counts, Counts: make([]int, len(counts))}
		for i := range counts {
			by.Counts[i] = 10
		}
		return by
	}
	times := func(n, count int) []int { return slices.Repeat([]int{count}, n) }
	for name, test := range map[string]struct {
		failed  []int
		backlog []int
		want    string // words of the findings
	}{
		"at 20 % it never began":                 {failed: slices.Concat(times(20, 0), times(10, 2), times(30, 2)), want: "20 % fail"}, // unusual at first
		"at 20 % from the start":                 {failed: times(60, 2)},
		"at 30 %, then 20 %":                     {failed: slices.Concat(times(20, 0), times(10, 3), times(30, 2)), want: "20 % fail"},
		"at 30 %, then 10 %":                     {failed: slices.Concat(times(20, 3), times(40, 1))},
		"at 30 %, then 10 %, then 20 %":          {failed: slices.Concat(times(10, 3), times(30, 1), times(20, 2))},
		"a minute after the start of counting":   {failed: []int{8, 0}, want: "40 % fail"},
		"too few to judge by":                    {failed: []int{5}},
		"a backlog that grows":                   {backlog: slices.Concat(times(50, 0), times(10, 150)), want: "grows"},
		"a backlog that grows more slowly":       {backlog: append(slices.Concat(times(45, 0), times(10, 200)), 290, 300, 310, 320, 330), want: "grows"},
		"a backlog that grew only a little":      {backlog: slices.Concat(times(50, 0), times(10, 80))},
		"a backlog that stays":                   {backlog: slices.Concat(times(30, 0), times(30, 500))},
		"a backlog within the first ten minutes": {backlog: []int{0, 5000}},
	} {
		s := &diagnosis.Situation{Now: now, Overview: &api.Overview{Bus: api.BusQueue}}
		of := api.Service{Service: "ocr", StepType: "OCR", Workers: []api.ServiceWorker{{Owner: "w", LastPollAt: api.NewTime(now)}}}
		if test.failed != nil {
			of.Attempts.ByMinute = minutes(test.failed)
		}
		if of.BacklogByMinute = test.backlog; len(test.backlog) > 0 {
			of.Backlog = test.backlog[len(test.backlog)-1]
		}
		var words []string
		for _, f := range s.ServiceFindings(&of) {
			words = append(words, f.Word)
		}
		if got := strings.Join(words, ", "); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// Findings claim no more than the minutes that were counted.
func TestServiceFindings_SayNoMoreThanWasCounted(t *testing.T) {
	t.Parallel()
	s := &diagnosis.Situation{Now: now, Overview: &api.Overview{Bus: api.BusQueue, Since: api.NewTime(now.Add(-12*time.Minute - 20*time.Second))}}
	of := api.Service{
		Service: "ocr", StepType: "OCR", Backlog: 3, OldestWaitingAt: api.NewTime(now.Add(-time.Hour)), OldestWaitingSeconds: 3600,
		Attempts: api.Rates{ByMinute: &api.MinuteCounts{Counts: slices.Repeat([]int{2}, 5), Failed: slices.Repeat([]int{2}, 5)}},
	}
	var said []string
	for _, f := range s.ServiceFindings(&of) {
		said = append(said, f.Text.With(func(_ diagnosis.Form, at time.Time) string { return "for " + diagnosis.Duration(now.Sub(at)) }))
		for _, note := range f.Notes {
			said = append(said, note.With(func(_ diagnosis.Form, at time.Time) string { return "for " + diagnosis.Duration(now.Sub(at)) }))
		}
	}
	text := strings.Join(said, "; ")
	for _, want := range []string{
		"no worker has polled within the 12 min since counting began", "has failed 100 % of its attempts at least for ",
		"10 of 10 within 5 minutes;", "no success within 5 minutes",
	} {
		if !strings.Contains(text+";", want) {
			t.Errorf("it says %s, without %q", text, want)
		}
	}
	if strings.Contains(text, "before that") || strings.Contains(text, "hour") {
		t.Errorf("it says %s", text)
	}
}
