package cli

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lucius-project/lucius/api"
)

// dates holds the flags that say when a job begins and when it expires.
type dates struct{ at, in, expires string }

func (d *dates) register(flags *pflag.FlagSet) {
	flags.StringVar(&d.at, "at", "", "begin at this time, such as 2026-01-28T02:00:00Z or 2026-01-28, not before")
	flags.StringVar(&d.in, "in", "", "begin after this long, such as 90m or 2d, not before")
	flags.StringVar(&d.expires, "expires", "",
		"fail with the code expired unless a worker has started it by this time, or within this long")
}

// parse returns what the flags say. A delay is sent as such, because the server's clock decides; a date of
// expiry that is a duration counts from now.
func (d *dates) parse(s *session) (request api.RescheduleRequest, err error) {
	if d.at != "" && d.in != "" {
		return request, usagef("give --at or --in, not both")
	}
	if d.at != "" {
		at, ok := pointInTime(d.at)
		if !ok {
			return request, usagef("--at is %q, it must be a time such as 2026-01-28T02:00:00Z or 2026-01-28; --in takes a duration", d.at)
		}
		request.NotBefore = api.NewTime(at)
	}
	if d.in != "" {
		delay, err := period(d.in)
		if err != nil || delay < 0 {
			return request, usagef("--in is %q, it must be a duration such as 90m or 2d", d.in)
		}
		request.DelaySeconds = new(int64(math.Ceil(delay.Seconds())))
	}
	if d.expires != "" {
		at, ok := pointInTime(d.expires)
		if !ok {
			left, err := period(d.expires)
			if err != nil || left <= 0 {
				return request, usagef("--expires is %q, it must be a time such as 2026-01-28T06:00:00Z or a duration like 4h", d.expires)
			}
			at = s.now().Add(left)
		}
		request.NotAfter = api.NewTime(at)
	}
	return request, nil
}

// add adds the dates that the flags name to commands.
func (d *dates) add(s *session, commands []command) error {
	request, err := d.parse(s)
	if err != nil || request == (api.RescheduleRequest{}) {
		return err
	}
	members, err := json.Marshal(request)
	if err != nil {
		return err
	}
	for i := range commands {
		c := &commands[i]
		var own struct {
			NotBefore    json.RawMessage `json:"not_before"`
			DelaySeconds json.RawMessage `json:"delay_seconds"`
			NotAfter     json.RawMessage `json:"not_after"`
		}
		if err := json.Unmarshal(c.text, &own); err != nil {
			return usagef("line %d: %w", c.line, err)
		}
		switch {
		case d.at+d.in != "" && (own.NotBefore != nil || own.DelaySeconds != nil):
			return usagef("line %d: the command says when it begins: leave out --at and --in", c.line)
		case d.expires != "" && own.NotAfter != nil:
			return usagef("line %d: the command says when it expires: leave out --expires", c.line)
		}
		c.text = withMembers(c.text, members[1:len(members)-1])
	}
	return nil
}

func (t *tool) jobsReschedule() *cobra.Command {
	var d dates
	var begin, never bool
	var reason string
	cmd := t.command(spec{
		use: "reschedule JOB", short: "Change when a job begins or expires", args: 1, completes: jobIDs,
		long: "Changes the dates of a job that has not begun: one that waits for its date or its line, or was paused\n" +
			"before it began. A date that no flag names stays.",
		example: "  lucius jobs reschedule JOB --now\n  lucius jobs reschedule JOB --in 2d --reason \"the source is late\"\n" +
			"  lucius jobs reschedule JOB --at 2026-01-28T02:00:00Z --never-expires",
	}, func(ctx context.Context, s *session, args []string) error {
		switch {
		case begin && d.at+d.in != "":
			return usagef("give --now, --at or --in, not two of them")
		case never && d.expires != "":
			return usagef("give --expires or --never-expires, not both")
		case !begin && !never && d == (dates{}):
			return usagef("say when: --at, --in or --now, --expires or --never-expires")
		}
		request, err := d.parse(s)
		if err != nil {
			return err
		}
		if begin {
			request.DelaySeconds = new(int64(0))
		}
		request.NeverExpires, request.Reason = never, reason
		job, err := call[api.Job](s.RescheduleJob(ctx, args[0], request))
		if err != nil {
			return err
		}
		return show(s, job, func(p *page, job api.Job) {
			p.line("Rescheduled job %s: it is %s", job.JobID, p.state(string(job.State)))
			p.fields("begins", p.date(job.NotBefore), "expires", p.date(job.NotAfter))
		})
	})
	flags := cmd.Flags()
	d.register(flags)
	flags.BoolVar(&begin, "now", false, "begin at once")
	flags.BoolVar(&never, "never-expires", false, "remove the date of expiry")
	flags.StringVar(&reason, "reason", "", "why, for the job's history")
	return cmd
}

// date formats a job's date and its distance from now. It returns "" for the zero time.
func (p *page) date(at api.Time) string {
	if at.IsZero() {
		return ""
	}
	return at.UTC().Format(time.RFC3339) + ", " + p.ago(at.Time)
}
