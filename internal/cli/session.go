package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lucius-project/lucius/api"
)

// tool makes the commands, and holds the flags that they share. It serves one command line.
type tool struct {
	Env

	flags   connection
	context string
	output  Output
}

// commands returns the commands of this package, each with its group.
func (t *tool) commands() []*cobra.Command {
	return []*cobra.Command{
		t.why(), t.doc(), t.jobs(), t.submit(),
		t.attention(), t.overview(), t.failures(), t.retry(), t.operations(), t.services(), t.workers(), t.stuck(), t.pauseDispatch(),
		t.resumeDispatch(), t.pauses(), t.limits(), t.lines(), t.schedules(),
		t.auditTrail(), t.outbox(), t.work(), t.webhooks(), t.inbox(), t.backup(), t.archive(),
		t.doctor(), t.protocolCommands(), t.contextCommands(),
	}
}

// session is a running command with its connection to the server.
type session struct {
	*api.Client
	*tool

	// cmd is the command with its flags.
	cmd *cobra.Command
}

// spec describes a command that calls the server. See the package's comment.
type spec struct {
	use, short, long, example string
	// args is the number of arguments, or, if more is set, the least number.
	args int
	more bool
	// completes returns completions of the arguments, which it reads from the server.
	// Optional.
	completes func(context.Context, *session) []cobra.Completion
	query     bool // The argument goes into the query, so it may contain slashes.
}

// command returns a command that calls the server.
func (t *tool) command(is spec, run func(ctx context.Context, s *session, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: is.use, Short: is.short, Long: is.long, Example: is.example, Args: Takes(is.args, is.args)}
	if is.more {
		cmd.Args = Takes(is.args, math.MaxInt)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, arg := range args { // An empty shell variable, for instance, would change the path of the request.
			if is.completes != nil && (strings.Trim(arg, ".") == "" || strings.Contains(arg, "/") && !is.query) {
				return usagef("%q is not an id: see %s --help", arg, cmd.CommandPath())
			}
		}
		if err := checkFlags(cmd); err != nil {
			return err
		}
		s, err := t.open(cmd)
		if err != nil {
			return err
		}
		defer s.close()
		return run(cmd.Context(), s, args)
	}
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if is.completes == nil || len(args) >= is.args && !is.more {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return t.complete(cmd, is.completes)
	}
	return cmd
}

// checkFlags refuses values that would count as if the flag were not given: a text that is
// empty, as by an unset variable, and a lane below 0. Without its --tenant a command would
// select the jobs of all.
func checkFlags(cmd *cobra.Command) (err error) {
	cmd.LocalNonPersistentFlags().VisitAll(func(flag *pflag.Flag) {
		switch text := flag.Value.String(); {
		case !flag.Changed || err != nil:
		case flag.Value.Type() == "string" && text == "":
			err = usagef("--%s is empty: give it a value, or leave it out", flag.Name)
		case flag.Name == "lane" && strings.HasPrefix(text, "-"):
			err = usagef("--lane is %s, it must be at least 0", text)
		}
	})
	return err
}

// completionTimeout bounds the requests of a completion.
const completionTimeout = 2 * time.Second

// complete asks the server for completions. If it is unavailable, there are none.
func (t *tool) complete(cmd *cobra.Command, words func(context.Context, *session) []cobra.Completion) (
	[]cobra.Completion, cobra.ShellCompDirective,
) {
	s, err := t.open(cmd)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer s.close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	return words(ctx, s), cobra.ShellCompDirectiveNoFileComp
}

// completeFlag completes a flag with words that the server knows.
func (t *tool) completeFlag(cmd *cobra.Command, flag string, words func(context.Context, *session) []cobra.Completion) {
	complete := func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return t.complete(cmd, words)
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // The flag does not exist, or has a completion already.
	}
}

// calls registers the flags for the connection and the output format on a command and those
// below it.
func (t *tool) calls(cmd *cobra.Command) *cobra.Command {
	flags := cmd.PersistentFlags()
	t.flags.register(flags)
	flags.StringVar(&t.context, "context", "", "context to use, see lucius context (LUCIUS_CONTEXT)")
	if err := cmd.RegisterFlagCompletionFunc("context", t.completeContexts); err != nil {
		panic(err)
	}
	t.output.Register(cmd)
	return cmd
}

// agreed reports whether --yes was given.
func (s *session) agreed() bool {
	yes := s.cmd.Flags().Lookup("yes")
	return yes != nil && yes.Value.String() == "true"
}

// confirm asks the user whether to continue, unless --yes was given. Without a terminal to ask
// on, it fails.
func (s *session) confirm(question string) error {
	if s.agreed() {
		return nil
	}
	return s.Confirm(question)
}

// Confirm asks the user whether to continue. Without a terminal to ask on, it fails.
func (e *Env) Confirm(question string) error {
	if !e.Interactive {
		return usagef("%s There is no terminal to ask on: add --yes", question)
	}
	fmt.Fprintf(e.Stderr, "%s [y/N] ", question)
	answer, err := bufio.NewReader(e.Stdin).ReadString('\n')
	if errors.Is(err, errInterrupted) {
		fmt.Fprintln(e.Stderr)
		return unreachable(context.Canceled)
	}
	// The end of the input means no.
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return &Error{Code: ExitFailed, Err: errors.New("nothing was changed")}
	}
	return nil
}

// asks registers --yes on a command that uses [session.confirm].
func asks(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolP("yes", "y", false, "do not ask for confirmation")
	return cmd
}

// each calls do with each id. If there are several, it asks the question first, unless that is
// empty. After an error it prints the error and continues, unless the server is unavailable or
// the command was interrupted. It then returns an error with the last exit code.
func (s *session) each(question string, ids []string, do func(id string) error) (err error) {
	if question != "" && len(ids) > 1 {
		if err := s.confirm(question); err != nil {
			return err
		}
	}
	for _, id := range ids {
		failed := do(id)
		if failed == nil {
			continue
		}
		if len(ids) == 1 || ExitCode(failed) == ExitInterrupted || ExitCode(failed) == ExitUnavailable {
			return failed
		}
		fmt.Fprintf(s.Stderr, "%s: %v\n", plain(id), failed)
		err = &Error{Code: ExitCode(failed), Err: errors.New("not all of them were changed: see above")}
	}
	return err
}

// largestPage is the most entries of a page of the API.
const largestPage = 1000

// pages reads pages until it has limit entries or there are no more. It returns the last page
// with the entries of all.
func pages[P, E any](limit int, read func(size api.Limit, token *api.PageToken) (P, []E, string, error), set func(*P, []E)) (P, error) {
	all := []E{} // not nil, which would be printed as null
	var token *api.PageToken
	if limit < 1 {
		return *new(P), usagef("--limit is %d, it must be at least 1", limit)
	}
	for {
		page, some, next, err := read(api.Limit(max(1, min(largestPage, limit-len(all)))), token)
		if err != nil {
			return page, err
		}
		all = append(all, some...)
		if next == "" || len(all) >= limit {
			set(&page, all)
			return page, nil
		}
		token = &next
	}
}

// momentHelp describes the values that [session.moment] parses.
const momentHelp = "a time such as 2026-01-27T08:00:00Z or 2026-01-27, or how long ago, such as 24h or 7d"

const day = 24 * time.Hour

// moment parses the value of a flag that names a point in time. It returns nil if the value is
// empty.
func (s *session) moment(flag, text string) (*api.Time, error) {
	if text == "" {
		return nil, nil
	}
	if at, ok := pointInTime(text); ok {
		return new(api.NewTime(at)), nil
	}
	ago, err := period(text)
	if err != nil || ago < 0 {
		return nil, usagef("--%s is %q, it must be %s", flag, text, momentHelp)
	}
	return new(api.NewTime(s.now().Add(-ago))), nil
}

// pointInTime parses a time, or a date, which means its local midnight.
func pointInTime(text string) (at time.Time, ok bool) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}

// period parses a duration, which may be in days.
func period(text string) (time.Duration, error) {
	count, found := strings.CutSuffix(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	days, err := strconv.Atoi(count)
	long := time.Duration(days) * day
	if err == nil && long/day != time.Duration(days) {
		err = strconv.ErrRange
	}
	return long, err
}

// value returns what the pointer points to, or the zero value if it is nil.
func value[T any](pointer *T) (of T) {
	if pointer != nil {
		of = *pointer
	}
	return of
}

// optional returns a pointer to the value, or nil if the value is zero.
func optional[T comparable](value T) *T {
	if value == *new(T) {
		return nil
	}
	return &value
}
