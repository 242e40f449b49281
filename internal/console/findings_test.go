package console

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lucius-project/lucius/api"
)

// minutes are so many zeros, and these counts at their end.
func minutes(last ...int) []int { return append(make([]int, historyMinutes-len(last)), last...) }

// ocrWork is a service with a backlog of 3,000, and a worker that polled so long ago.
func ocrWork(backlog int, oldest, polled time.Duration) api.Service {
	s := api.Service{Service: "ocr", StepType: "OCR", Backlog: backlog, BacklogByMinute: minutes(backlog)}
	if backlog > 0 {
		s.OldestWaitingAt, s.OldestWaitingSeconds = ago(oldest), oldest.Seconds()
	}
	if polled > 0 {
		s.WorkersTotal, s.Workers = 1, []api.ServiceWorker{{Owner: "ocr-7", LastPollAt: ago(polled)}}
	}
	return s
}

// readOut is a finding as it is read.
func readOut(f *finding) string {
	text := f.Level + " " + f.Subject + " " + f.Text
	if !f.Since.IsZero() {
		text += " " + duration(now.Sub(f.Since.Time))
	}
	for _, n := range f.Notes {
		text += " · " + n.Text
		switch {
		case n.In:
			text += " in " + duration(n.At.Sub(now))
		case !n.At.IsZero():
			text += " " + duration(now.Sub(n.At.Time))
		}
	}
	for _, l := range f.Links {
		text += " [" + l.Text + "]"
	}
	return text
}

func TestFindings_SayWhatIsWrong(t *testing.T) {
	t.Parallel()
	busy := ocrWork(3000, 12*time.Minute, 2*time.Minute)
	busy.Running, busy.Attempts.LastMinute = 8, api.Rate{Count: 120, PerSecond: 2}
	busy.BacklogByMinute = slices.Repeat([]int{3000}, historyMinutes)
	grows := ocrWork(900, time.Minute, time.Second)
	grows.BacklogByMinute = minutes(300, 360, 420, 480, 540, 600, 660, 720, 780, 840, 900)
	failing := api.Service{Service: "embed", StepType: "EMBED", DurationSeconds: api.Percentiles{Count: 9, P95: 41}}
	failing.Attempts.ByMinute = &api.MinuteCounts{
		Counts: minutes(100, 100, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10),
		Failed: minutes(2, 2, 0, 0, 0, 0, 0, 0, 9, 9, 10, 10),
	}
	late, stalled := 45.0, 400.0
	for name, test := range map[string]struct {
		of   situation
		want []string
	}{
		"nothing": {},
		"a service that keeps up": {of: situation{services: []api.Service{
			ocrWork(20, 2*time.Second, time.Second), {Service: "index", StepType: "INDEX"},
		}}},
		"a worker that pauses for breath": {of: situation{services: []api.Service{ocrWork(20, 20*time.Second, 30*time.Second)}}},
		"no worker since": {
			of: situation{services: []api.Service{ocrWork(3000, 251*time.Second, 4*time.Minute)}},
			want: []string{"bad ocr: 3,000 directives wait, and no worker has polled for 4 min · the oldest waits for 4 min 11 s · " +
				"the last one was ocr-7 [Show the service] [Show the jobs] [Pause ocr…]"},
		},
		"no worker within the hour": {
			of:   situation{services: []api.Service{ocrWork(1, 2*time.Minute, 0)}},
			want: []string{"bad ocr: 1 directive waits, and no worker has polled within the hour · the oldest waits for 2 min"},
		},
		"workers that are busy": {
			of: situation{services: []api.Service{busy}},
			want: []string{"warn ocr: 3,000 directives wait, the oldest for 12 min · 1 worker, 8 under way · " +
				"done in about 25 min if nothing new arrives"},
		},
		"a backlog that grows": {
			of:   situation{services: []api.Service{grows}},
			want: []string{"warn ocr: 900 directives wait, up by 600 within 10 minutes · the oldest waits for 1 min"},
		},
		"no ACK on Service Bus": {
			of:   situation{overview: &api.Overview{Bus: api.BusServiceBus}, services: []api.Service{ocrWork(5, 6*time.Minute, 0)}},
			want: []string{"bad ocr: 5 directives wait for an ACK, and nothing runs"},
		},
		"workers on Service Bus": {
			of: situation{overview: &api.Overview{Bus: api.BusServiceBus}, services: []api.Service{ocrWork(5, 2*time.Minute, 0)}},
		},
		"errors": {
			of: situation{services: []api.Service{failing}},
			want: []string{"bad embed has failed 38 % of its attempts for 3 min 30 s · 38 of 100 within 10 minutes, usually 2.0 % · p95 41 s · " +
				"last success 2 minutes ago [See why] [Pause embed…]"},
		},
		"pauses": {
			of: situation{services: []api.Service{{Service: "ocr", Dispatching: 7}}, pauses: []api.Pause{
				{PauseID: "tenant:acme", TenantID: "acme", State: api.PauseStatePaused, Actor: "ops-1", Reason: "dispute", CreatedAt: ago(130 * time.Minute), Until: ago(-time.Hour)},
				{PauseID: "service:ocr", Service: "ocr", State: api.PauseStatePaused, CreatedAt: ago(time.Minute)},
				{PauseID: "lane:3", State: api.PauseStateRamping, CreatedAt: ago(time.Hour)},
			}},
			want: []string{
				"warn Service ocr is paused for 1 min · 7 directives wait · by",
				"warn Tenant acme is paused for 2 h 10 min · resumes by itself in 1 h · by ops-1: “dispute” [Resume…] [Show the jobs]",
			},
		},
		"pauses of a server that knows what they hold back": {
			of: situation{pauses: []api.Pause{
				{PauseID: "tenant:acme", TenantID: "acme", State: api.PauseStatePaused, CreatedAt: ago(time.Hour), Waiting: new(1)},
				{PauseID: "lane:3", Lane: new(int32(3)), State: api.PauseStatePaused, CreatedAt: ago(time.Hour), Waiting: new(40)},
			}},
			want: []string{"warn Lane 3 is paused for 1 h · 40 directives wait · by", "warn Tenant acme is paused for 1 h · 1 directive waits · by"},
		},
		"workers that poll for nothing that exists": {
			of: situation{unmatched: []api.UnmatchedWorker{
				{Owner: "w-1", Services: []string{"extrakt"}, LastPollAt: ago(time.Minute)}, {Owner: "w-2", StepTypes: []string{"OCRR"}},
			}},
			want: []string{"warn Worker w-1 polls, but no protocol has extrakt · its last poll 1 min · 1 other worker does the like [Show the services]"},
		},
		"one paused job": {
			of:   situation{overview: &api.Overview{Jobs: map[string]int{"PAUSED": 1}}},
			want: []string{"warn 1 job is paused on its own, until it is resumed [Show the jobs]"},
		},
		"a job that is about to be paused": {
			of:   situation{overview: &api.Overview{Jobs: map[string]int{"PAUSING": 1}}},
			want: []string{"warn 1 job is paused on its own, until it is resumed [Show the jobs]"},
		},
		"the server": {
			of: situation{unready: "The store does not answer.", warnings: []string{"dispatch of all is PAUSED: x", "2 replies are dead letters", "1 command of the inbox was refused"}, overview: &api.Overview{
				Jobs: map[string]int{"PAUSED": 3, "PAUSING": 1}, Stuck: api.StuckCount{Count: 1, Checked: 50}, OldestPendingSeconds: &late,
			}},
			want: []string{
				"bad The server is not ready: The store does not answer.", "bad 1 job stands still and cannot continue without help",
				"warn 4 jobs are paused one by one, until they are resumed [Show the 3 PAUSED] [Show the 1 PAUSING]", "warn The outbox is late: its oldest directive has been due for 45 s",
				"warn The server warns: 2 replies are dead letters [Show the dead letters]",
				"warn The server warns: 1 command of the inbox was refused [Show the inbox]",
			},
		},
		"a stalled outbox": {
			of:   situation{overview: &api.Overview{OldestPendingSeconds: &stalled}},
			want: []string{"bad The outbox is late: its oldest directive has been due for 6 min 40 s"},
		},
		"circuits": { // They explain an outbox that is late.
			of: situation{overview: &api.Overview{OldestPendingSeconds: &stalled, Circuits: []api.Circuit{
				{Name: "global-bus-p3", State: "open", Reason: "not found", Since: ago(time.Minute)}, {Name: "bus", State: "half-open", Since: ago(time.Second)},
			}}},
			want: []string{
				"bad Topic global-bus-p3 is out of service, its circuit open, for 1 min · not found",
				"bad The whole bus is out of service, its circuit half-open, for 1.0 s",
			},
		},
		"failures": {
			of: situation{tenants: []tenantSituation{{Tenant: "acme", Failures: api.FailureList{Groups: []api.FailureGroup{
				{Service: "ocr", StepType: "OCR", ErrorCode: "bad_scan", Count: 214, FirstAt: ago(2 * time.Hour), LastAt: ago(time.Minute)},
				{Service: "ocr", ErrorCode: "old", Count: 900, LastAt: ago(5 * time.Hour)}, {ErrorCode: "rerun", Count: 9, Resolved: true},
				{ErrorCode: "a", Count: 5}, {ErrorCode: "b", Count: 4}, {ErrorCode: "c", Count: 3}, {ErrorCode: "d", Count: 2}, {ErrorCode: "e", Count: 1},
			}}, Webhooks: api.WebhookPage{Webhooks: []api.Webhook{{URL: "https://a.example/", LastError: "503", UpdatedAt: ago(time.Minute)}}}}}},
			want: []string{
				"bad 214 jobs failed for good at ocr: bad_scan, of tenant acme · first 2 h · last 1 min [Retry 214…] [Show the jobs]",
				"warn 900 jobs failed for good at ocr: old", "warn 5 jobs", "warn 4 jobs", "warn 3 jobs",
				"warn 1 webhook was given up without being delivered, of tenant acme · the last 1 min · to https://a.example/: 503 [Show the webhooks]",
				"warn 3 jobs failed for good for 2 other reasons [Show all failures]",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.of.now = now
			var got []string
			known := map[string]bool{}
			for _, f := range findings(&test.of) {
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

func TestAttention_RanksAndCounts(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/services"] = api.ServiceList{Services: []api.Service{ocrWork(3000, 251*time.Second, 4*time.Minute)}}
	answers["GET /v1/admin/failures"] = api.FailureList{Groups: []api.FailureGroup{
		{Service: "<script>", StepType: "OCR", ErrorCode: "<b>", Count: 5000, FirstAt: ago(time.Hour), LastAt: ago(time.Minute), Histogram: []int{1, 5}},
	}}
	b := newBrowser(t, answers)
	page := b.get(t, "/ui/")
	has(t, page, "5,000 jobs", "&lt;script&gt;", "/ui/do/retry?error_code=%3Cb%3E", "no worker has polled for <b><time", "Everything else is well: 0/s accepted, 0 live jobs",
		`Attention <span class="hot">2</span>`, `<figure class="spark bad"><svg`, "Live jobs and steps are exact")
	hasNot(t, page, "<script>", "<b>:")
	if strings.Index(page, "5,000 jobs") > strings.Index(page, "3,000 directives") {
		t.Error("the smaller one comes first")
	}
	has(t, b.get(t, "/ui/pauses"), `Attention <span class="hot">2</span>`)
}

func TestAttention_OfAUserOfOneTenant(t *testing.T) {
	t.Parallel()
	answers := quiet()
	answers["GET /v1/admin/overview"] = refuse(403, "It is for all tenants.")
	answers["GET /v1/admin/pauses"] = api.PauseList{Pauses: []api.Pause{{PauseID: "tenant:tenant_a", TenantID: "tenant_a", State: api.PauseStatePaused, CreatedAt: ago(time.Hour)}}}
	b := newBrowser(t, answers)
	b.token = "bound"
	page := b.get(t, "/ui/")
	has(t, page, "<b>Tenant tenant_a</b> is paused for", "Nothing else needs attention at tenant_a.", "for users who may read all tenants", `Attention <span>1</span>`)
	has(t, b.get(t, "/ui/flow"), "counted for all tenants together")
	b.set("GET /v1/admin/pauses", api.PauseList{})
	has(t, b.get(t, "/ui/flow"), "counted for all tenants together")
}

func TestAttention_SaysWhichTenantsItLookedAt(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, quiet())
	b.token = "many"
	page := b.get(t, "/ui/")
	has(t, page, "Nothing needs attention at t00, t01,", ", t09.", "2 more tenants</a> of yours were not looked at.")
	hasNot(t, page, "t10")
}
