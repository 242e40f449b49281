package cli

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/internal/diagnosis"
)

// state is the state that the overview shows.
type state struct {
	Overview api.Overview
	Services []api.Service
	Found    []diagnosis.Finding
	looked   time.Time // when they were found
	fault    string    // why the state is not current
}

// overview returns lucius overview, which shows the state of the whole server.
func (t *tool) overview() *cobra.Command {
	var once bool
	var interval time.Duration
	cmd := t.command(spec{
		use: "overview", short: "Show the state of the server, live",
		long: "Shows the jobs, services, pauses and circuits of the server: live on a terminal until Ctrl-C, otherwise\n" +
			"once. With -o json or yaml it prints the API's overview once.",
		example: "  lucius overview\n  lucius overview --once",
	}, func(ctx context.Context, s *session, _ []string) error {
		if interval < 100*time.Millisecond {
			return usagef("--interval is %s, it must be at least 100ms", interval)
		}
		if s.output != "table" {
			all, err := call[api.Overview](s.GetOverview(ctx, nil))
			if err != nil {
				return err
			}
			return s.encode(all)
		}
		view := s.live()
		var last *state
		for {
			now, err := s.state(ctx, last)
			switch {
			case view != nil && ExitCode(err) == ExitInterrupted:
				return nil // Ctrl-C is how a user ends it.
			case last != nil && ExitCode(err) == ExitUnavailable: // The server may be restarting.
				now = *last
				now.fault = err.Error()
			case err != nil:
				return err
			case once || view == nil:
				return show(s, now, showState)
			default:
				last = &now
			}
			view.draw(render(s, now, showState))
			if err := s.pause(ctx, interval); err != nil {
				return nil //nolint:nilerr // This is Ctrl-C, too.
			}
		}
	})
	cmd.Flags().BoolVar(&once, "once", false, "show it once, even on a terminal")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between updates")
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// lookAgain is how often the live overview looks for what needs an operator: some of it costs
// reads of the store.
const lookAgain = 30 * time.Second

// state asks for the state. It keeps the findings of the last one while they are new.
func (s *session) state(ctx context.Context, last *state) (now state, err error) {
	if now.Overview, err = call[api.Overview](s.GetOverview(ctx, nil)); err != nil {
		return now, err
	}
	list, err := call[api.ServiceList](s.ListServices(ctx, nil))
	if now.Services = list.Services; err != nil {
		return now, err
	}
	if now.looked = s.now(); last != nil && now.looked.Sub(last.looked) < lookAgain {
		now.Found, now.looked = last.Found, last.looked
		return now, nil
	}
	seen, err := s.look(ctx)
	if err != nil {
		return now, err
	}
	now.Found = diagnosis.Findings(seen)
	return now, nil
}

// heldText says how many directives pauses hold back, if there are any.
func heldText(held int) string {
	if held == 0 {
		return ""
	}
	return fmt.Sprintf("%d by pauses: lucius pauses list", held)
}

// showState writes one screen with the state of the server.
func showState(p *page, now state) {
	all := &now.Overview
	exact := map[bool]string{true: "exact", false: "estimated"}[all.Exact]
	p.line("%s  live jobs and steps %s, as of %s", p.style(bold, "Lucius"), exact, p.ago(all.AsOf.Time))
	if now.fault != "" {
		p.line("%s", p.style(red, "Not current, trying again: "+plain(now.fault)))
	}
	p.findings(now.Found, 5)
	p.line("")
	var live []string
	for _, name := range jobStates {
		if n := all.Jobs[name]; n > 0 {
			live = append(live, fmt.Sprintf("%d %s", n, p.state(name)))
		}
	}
	if live == nil {
		live = []string{"none"}
	}
	oldest := ""
	if w := &all.OldestWaiting; w.Service != "" {
		oldest = fmt.Sprintf(", the oldest for %s since %s", w.Service, short(seconds(w.Seconds)))
	}
	stuck := ""
	if n := all.Stuck.Count; n > 0 {
		stuck = p.style(red, fmt.Sprintf("%d: lucius stuck", n))
	}
	pending := ""
	if late := all.OldestPendingSeconds; late != nil && *late >= 1 {
		pending = "the oldest due directive for " + short(seconds(*late))
	}
	refused, commands := openCommands(p, all.Inbox)
	p.fields("live jobs", strings.Join(live, ", "), "waiting", strconv.Itoa(all.Backlog)+oldest, "held", heldText(all.Held),
		"running", strconv.Itoa(all.Running), "unpublished", pending, "stuck", stuck, "inbox refused", refused, "inbox waiting", commands)
	p.line("")
	rows := [][]string{rateRow("accepted", &all.Accepted)}
	for _, name := range []string{"SUCCEEDED", "FAILED_FINAL", "CANCELLED"} {
		if rates, ok := all.Ended[name]; ok {
			rows = append(rows, rateRow(p.state(name), &rates))
		}
	}
	p.table([]string{"JOBS", "LAST MINUTE", "PER SECOND", "LAST HOUR", "TOTAL"}, rows)
	counted := "Counting began " + p.ago(all.Since.Time)
	if all.CompleteSince.After(all.Since.Time) {
		counted += fmt.Sprintf("; some counts were lost, last %s, as by a crash", p.ago(all.CompleteSince.Time))
	}
	p.line("%s", p.style(faint, counted))
	if len(now.Services) > 0 {
		p.line("")
		showServices(p, api.ServiceList{Services: now.Services})
	}
	if len(all.Pauses)+len(all.Circuits) > 0 {
		p.line("")
	}
	for i := range all.Pauses {
		pause := &all.Pauses[i]
		text := fmt.Sprintf("pause %s by %s %s", pause.PauseID, pause.Actor, p.ago(pause.CreatedAt.Time))
		if resumes := p.resumes(pause); resumes != "" {
			text += ", resumes " + resumes
		}
		text += ": " + pause.Reason
		p.line("%s", p.style(yellow, text))
	}
	for i := range all.Circuits {
		c := &all.Circuits[i]
		p.line("%s", p.style(red, fmt.Sprintf("circuit %s is %s, next try %s: %s", c.Name, c.State, p.until(c.Until.Time), c.Reason)))
	}
}

// inboxWait is how long a command in the inbox may wait before the overview shows that.
const inboxWait = time.Minute

// openCommands says how many commands of the inbox were refused and, if one has waited for too
// long, how many wait.
func openCommands(p *page, counts *api.InboxCounts) (refused, waiting string) {
	if counts == nil {
		return "", ""
	}
	if counts.Refused > 0 {
		refused = p.style(red, inboxCount(p, counts.Refused, "", counts.OldestRefusedAt)+": lucius inbox list")
	}
	if counts.Waiting > 0 && p.now.Sub(counts.OldestWaitingAt.Time) > inboxWait {
		waiting = p.style(yellow, inboxCount(p, counts.Waiting, "", counts.OldestWaitingAt)+": lucius inbox list --state waiting")
	}
	return refused, waiting
}

func rateRow(name string, r *api.Rates) []string {
	return []string{
		name, strconv.Itoa(r.LastMinute.Count), fmt.Sprintf("%.1f", r.LastMinute.PerSecond), strconv.Itoa(r.LastHour.Count),
		strconv.Itoa(r.Total),
	}
}

// showServices writes a table of services.
func showServices(p *page, list api.ServiceList) {
	rows := make([][]string, len(list.Services))
	for i := range list.Services {
		one := &list.Services[i]
		rate, p95 := "", ""
		if hour := &one.Attempts.LastHour; hour.Count > 0 {
			rate = fmt.Sprintf("%.1f %%", 100*hour.ErrorRate)
		}
		if one.DurationSeconds.Count > 0 {
			p95 = fmt.Sprintf("%.3gs", one.DurationSeconds.P95)
		}
		workers := strconv.Itoa(one.WorkersTotal)
		if one.WorkersTotal == 0 && one.Backlog > 0 {
			workers = p.style(red, workers)
		}
		oldest := ""
		if one.OldestWaitingSeconds > 0 {
			oldest = short(seconds(one.OldestWaitingSeconds))
		}
		rows[i] = []string{
			one.Service, one.StepType, strconv.Itoa(one.Backlog), strconv.Itoa(one.Held), oldest, strconv.Itoa(one.Claimed),
			strconv.Itoa(one.Running), strconv.Itoa(one.Backoff), workers, strconv.Itoa(one.Attempts.LastMinute.Count), rate, p95,
		}
	}
	p.table([]string{
		"SERVICE", "STEP TYPE", "WAITING", "HELD", "OLDEST", "CLAIMED", "RUNNING", "BACKOFF", "WORKERS", "ENDED/MIN", "ERRORS/H", "P95",
	}, rows)
	if len(list.UnmatchedWorkers) == 0 {
		return
	}
	p.line("\n%s", p.style(red, "These workers poll, but for nothing that exists:"))
	rows = make([][]string, len(list.UnmatchedWorkers))
	for i := range list.UnmatchedWorkers {
		one := &list.UnmatchedWorkers[i]
		rows[i] = []string{
			one.Owner, cmp.Or(strings.Join(one.Services, ", "), "any"), cmp.Or(strings.Join(one.StepTypes, ", "), "any"),
			p.ago(one.LastPollAt.Time),
		}
	}
	p.table([]string{"WORKER", "SERVICES", "STEP TYPES", "LAST POLL"}, rows)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
