package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// scope holds the flags that name the scope of a pause, by the kind's name.
type scope struct {
	values map[string]*string
	all    bool
}

func (c *scope) register(t *tool, cmd *cobra.Command) {
	flags := cmd.Flags()
	c.values = map[string]*string{}
	for _, kind := range api.ScopeKinds() {
		c.values[kind.Name] = flags.String(kind.Name, "", kind.Help)
	}
	flags.BoolVar(&c.all, "all", false, "all dispatch")
	t.completeFlag(cmd, "service", serviceNames)
	t.completeFlag(cmd, "protocol", protocolIDs)
}

// named returns the scopes that the flags name.
func (c *scope) named() (scopes []api.Scope, err error) {
	if c.all {
		scopes = append(scopes, api.Scope{})
	}
	for _, kind := range api.ScopeKinds() {
		if value := *c.values[kind.Name]; value != "" {
			scope, err := api.NewScope(kind.Name, value)
			if err != nil {
				return nil, usagef("%v", err)
			}
			scopes = append(scopes, scope)
		}
	}
	return scopes, nil
}

// one returns the scope that the flags name, or an error unless it is exactly one.
func (c *scope) one() (api.Scope, error) {
	scopes, err := c.named()
	if err == nil && len(scopes) != 1 {
		var flags []string
		for _, kind := range api.ScopeKinds() {
			flags = append(flags, "--"+kind.Name)
		}
		err = usagef("name one scope: %s, or --all", strings.Join(flags, ", "))
	}
	if err != nil {
		return api.Scope{}, err
	}
	return scopes[0], nil
}

// pauseDispatch returns lucius pause.
func (t *tool) pauseDispatch() *cobra.Command {
	var over scope
	var reason string
	var unknown bool
	var ends expiry
	cmd := t.command(spec{
		use: "pause", short: "Pause dispatch for a service, a tenant, a protocol or a lane",
		long: "Stops new dispatch within the scope until lucius resume, or until the pause expires by --for or\n" +
			"--until. Commands are still accepted, and workers finish what they have. To pause individual jobs,\n" +
			"see lucius jobs pause.",
		example: "  lucius pause --service ocr --reason \"OCR is down\"\n" +
			"  lucius pause --service ocr --reason maintenance --for 2h\n  lucius pauses list\n  lucius resume --service ocr",
	}, func(ctx context.Context, s *session, _ []string) error {
		paused, err := over.one()
		if err != nil {
			return err
		}
		if reason == "" {
			return usagef("say why with --reason: it is shown with the pause")
		}
		request := api.PauseRequest{Reason: reason, AllowUnknown: unknown}
		request.SetScope(paused)
		if err := ends.fill(&request); err != nil {
			return err
		}
		if over.all {
			if err := s.confirm("Pause all dispatch?"); err != nil {
				return err
			}
		}
		pause, err := call[api.Pause](s.CreatePause(ctx, request))
		if err != nil {
			return err
		}
		return show(s, pause, func(p *page, pause api.Pause) {
			if pause.Until.IsZero() {
				p.line("Paused %s: lucius resume %s resumes it", pause.PauseID, pause.PauseID)
				return
			}
			p.line("Paused %s until %s, %s: lucius resume %s resumes it sooner",
				pause.PauseID, pause.Until, p.until(pause.Until.Time), pause.PauseID)
		})
	})
	over.register(t, cmd)
	flags := cmd.Flags()
	flags.StringVar(&reason, "reason", "", "why; shown with the pause")
	flags.StringVar(&ends.after, "for", "", "resume by itself after this long, such as 2h or 1d")
	flags.StringVar(&ends.at, "until", "", "resume by itself at this time, such as 2026-01-27T18:00:00Z")
	flags.BoolVar(&unknown, "allow-unknown", false, "also a service, protocol or lane that the server does not know")
	cmd.GroupID = GroupOperate
	return t.calls(asks(cmd))
}

// expiry holds the flags that say when a pause expires.
type expiry struct{ after, at string }

// fill sets the end of the pause. It sends a duration as such, because the server's clock
// decides.
func (e *expiry) fill(request *api.PauseRequest) error {
	switch {
	case e.after != "" && e.at != "":
		return usagef("give --for or --until, not both")
	case e.after != "":
		after, err := period(e.after)
		if err != nil || after <= 0 {
			return usagef("--for is %q, it must be a duration such as 2h or 1d", e.after)
		}
		request.ForSeconds = new(after.Seconds())
	case e.at != "":
		at, err := time.Parse(time.RFC3339, e.at)
		if err != nil {
			return usagef("--until is %q, it must be a time such as 2026-01-27T18:00:00Z", e.at)
		}
		request.Until = api.NewTime(at)
	}
	return nil
}

// resumeDispatch returns lucius resume.
func (t *tool) resumeDispatch() *cobra.Command {
	var over scope
	var reason string
	var ramp time.Duration
	cmd := t.command(spec{
		use: "resume [PAUSE...]", short: "Resume paused dispatch", more: true, completes: pauseIDs,
		long: "Resumes the named pauses, or the one of the scope. Waiting directives are dispatched at a rate that\n" +
			"doubles every second, until the ramp is over.",
		example: "  lucius resume service:ocr\n  lucius resume --service ocr --ramp 1m",
	}, func(ctx context.Context, s *session, ids []string) error {
		named, err := over.named()
		switch {
		case err != nil:
			return err
		case len(ids) == 0:
			paused, err := over.one()
			if err != nil {
				return err
			}
			ids = []string{paused.ID()}
		case len(named) > 0:
			return usagef("name pauses, or a scope by flags, not both")
		}
		request := api.ResumeRequest{Reason: reason}
		if s.cmd.Flags().Changed("ramp") {
			request.RampSeconds = new(ramp.Seconds())
		}
		return s.each("", ids, func(id string) error {
			pause, err := call[api.Pause](s.ResumePause(ctx, id, request))
			if err != nil {
				return err
			}
			return show(s, pause, func(p *page, pause api.Pause) { p.line("Resumed %s: it is %s", pause.PauseID, pause.State) })
		})
	})
	over.register(t, cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	cmd.Flags().DurationVar(&ramp, "ramp", 0, "length of the ramp; 0 dispatches everything at once (default: the server's)")
	cmd.GroupID = GroupOperate
	return t.calls(cmd)
}

// pauses returns lucius pauses.
func (t *tool) pauses() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pauses", GroupID: GroupOperate, Short: "Show what is paused", Example: "  lucius pauses list",
	}
	cmd.AddCommand(t.command(spec{
		use: "list", short: "List the pauses of dispatch", example: "  lucius pauses list",
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := call[api.PauseList](s.ListPauses(ctx))
		if err != nil {
			return err
		}
		return show(s, list, func(p *page, list api.PauseList) {
			if len(list.Pauses) == 0 {
				p.line("Nothing is paused.")
				return
			}
			rows := make([][]string, len(list.Pauses))
			for i := range list.Pauses {
				one := &list.Pauses[i]
				rows[i] = []string{
					one.PauseID, p.style(yellow, string(one.State)), one.Actor, p.ago(one.CreatedAt.Time), p.resumes(one), one.Reason,
				}
			}
			p.table([]string{"PAUSE", "STATE", "BY", "SINCE", "RESUMES", "REASON"}, rows)
		})
	}))
	return t.calls(cmd)
}

// resumes says when a pause expires. It returns "" if it does not.
func (p *page) resumes(pause *api.Pause) string {
	if pause.State != api.PauseStatePaused {
		return ""
	}
	return p.until(pause.Until.Time)
}

// pauseIDs completes the ids of pauses.
func pauseIDs(ctx context.Context, s *session) (words []cobra.Completion) {
	list, err := call[api.PauseList](s.ListPauses(ctx))
	if err != nil {
		return nil
	}
	for i := range list.Pauses {
		words = append(words, cobra.CompletionWithDesc(plain(list.Pauses[i].PauseID), plain(list.Pauses[i].Reason)))
	}
	return words
}
