package schedules

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/lucius-project/lucius/pkg/apierror"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/schedules/calendar"
)

// validName is what a path can hold without an escape.
var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// notInSchedules are members of a command that a schedule sets, or that make no sense in one.
var notInSchedules = []string{"tenant_id", "idempotency_key", "not_before", "not_after"}

// check sets the defaults of a definition, and checks it. It returns an [*InvalidError], or the [*apierror.Error] of the
// command.
func (s *Service) check(def *Definition, now time.Time) (*calendar.Calendar, error) {
	if len(def.Name) > MaxName || !validName.MatchString(def.Name) {
		return nil, &InvalidError{"/name", fmt.Sprintf("must have 1 to %d letters, digits, dots, hyphens and underscores, "+
			"and begin with a letter or a digit", MaxName)}
	}
	def.Overlap = cmp.Or(def.Overlap, OverlapSkip)
	def.CatchUp.Policy = cmp.Or(def.CatchUp.Policy, CatchUpLast)
	def.CatchUp.Window = cmp.Or(def.CatchUp.Window, DefaultWindow)
	cal, err := calendar.Parse(def.Spec)
	if err == nil {
		err = cal.Check(now)
	}
	if invalid, is := errors.AsType[*calendar.Error](err); is {
		return nil, &InvalidError{"/" + invalid.Field, invalid.Message}
	}
	next, _ := cal.Next(now) // Check found it.
	switch {
	case def.CatchUp.Window < 0 || def.CatchUp.Window > MaxWindow:
		return nil, &InvalidError{"/catch_up/window", fmt.Sprintf("must be at most %s", MaxWindow)}
	case def.CatchUp.Policy == CatchUpAll && tooMany(cal, next, def.CatchUp.Window):
		return nil, &InvalidError{"/catch_up/window", fmt.Sprintf("has more than %d occurrences", MaxCatchUp)}
	}
	if err := oneOf("/catch_up/policy", def.CatchUp.Policy, CatchUpNone, CatchUpLast, CatchUpAll); err != nil {
		return nil, err
	}
	if err := oneOf("/overlap", def.Overlap, OverlapSkip, OverlapQueue, OverlapCancel, OverlapAllow); err != nil {
		return nil, err
	}
	return cal, s.checkCommand(def, next)
}

// oneOf returns an [*InvalidError] unless the value is one of them.
func oneOf[T ~string](pointer string, value T, values ...T) error {
	if slices.Contains(values, value) {
		return nil
	}
	return &InvalidError{pointer, fmt.Sprintf("is %q and must be one of %q", value, values)}
}

// tooMany reports whether a window has more occurrences than can be caught up.
func tooMany(cal *calendar.Calendar, first time.Time, window time.Duration) bool {
	at := first
	for range MaxCatchUp {
		next, ok := cal.Next(at)
		if !ok || next.Sub(first) > window {
			return false
		}
		at = next
	}
	return true
}

// checkCommand checks the command with its first occurrence.
func (s *Service) checkCommand(def *Definition, at time.Time) error {
	if len(def.Command) > MaxCommand {
		return &InvalidError{"/command", fmt.Sprintf("has %d bytes; at most %d are allowed", len(def.Command), MaxCommand)}
	}
	if _, err := commands.ParseJSON(def.Command); err != nil {
		return err
	}
	members, isObject := commands.Members(def.Command)
	if !isObject || len(members) == 0 {
		return &InvalidError{"/command", "must be an object with the fields of a command"}
	}
	for _, name := range notInSchedules {
		if _, ok := members[name]; ok {
			return &InvalidError{"/command/" + name, "must not be set in a schedule"}
		}
	}
	body, err := def.body(at)
	if err != nil {
		return err
	}
	submission, err := s.cfg.Commands.Prepare(body, commands.Headers{}, func(string) error { return nil })
	if err == nil {
		err = submission.Refused()
	}
	if err != nil {
		return apierror.Below("/command", err)
	}
	return def.checkOverlap(submission)
}

// checkOverlap refuses a command that has its own line if the overlap is one that only a line of the schedule has.
func (d *Definition) checkOverlap(submission *commands.Submission) error {
	if submission.Order().Key == "" || d.Overlap == OverlapQueue || d.Overlap == OverlapAllow {
		return nil
	}
	return &apierror.Error{Code: apierror.ScheduleInvalid, Errors: []apierror.Violation{{
		Pointer: "/overlap", Message: "must be queue or allow, because the command has an order key of its own",
	}}}
}
