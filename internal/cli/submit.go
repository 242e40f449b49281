package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/lucius-project/lucius/api"
	"github.com/lucius-project/lucius/pkg/apierror"
)

// submission holds the flags of lucius submit.
type submission struct {
	dates dates
	order ordering
	class priority

	again, wait bool
	timeout     time.Duration
}

// submit returns lucius submit.
func (t *tool) submit() *cobra.Command {
	var o submission
	cmd := t.command(spec{
		use: "submit FILE", short: "Submit a command, or a file of many", args: 1,
		long: "Submits the commands in a file, or on standard input if FILE is -: one JSON object, an array, or\n" +
			"consecutive objects, such as JSON lines. A command without an idempotency_key gets one derived from its\n" +
			"text, so submitting it again creates no second job, unless with --again. The flags --at, --in and --expires\n" +
			"set the dates of all commands, --order-key and --order-mode their line, --priority their class. They are\n" +
			"not part of such a key: a repeated command keeps its first ones. Commands are sent in their order in the file.\n\n" +
			"With -o json or yaml, one command prints its receipt, and many print the batch's results; with --wait,\n" +
			"the job or a page of jobs.",
		example: "  lucius submit command.json --wait\n  lucius submit commands.jsonl\n  generate | lucius submit - -o json\n" +
			"  lucius submit command.json --at 2026-01-28T02:00:00Z --expires 2026-01-28T06:00:00Z\n" +
			"  lucius submit command.json --in 90m\n  lucius submit commands.jsonl --order-key customer-42\n" +
			"  lucius submit backfill.jsonl --priority bulk",
	}, func(ctx context.Context, s *session, args []string) error {
		if o.timeout != 0 && !o.wait {
			return usagef("--timeout needs --wait")
		}
		commands, err := s.readCommands(args[0], o.again)
		if err != nil {
			return err
		}
		if err := errors.Join(o.dates.add(s, commands), o.order.add(commands), o.class.add(commands)); err != nil {
			return err
		}
		if len(commands) == 1 {
			receipt, err := s.submitOne(ctx, commands[0].text)
			if o.again && unanswered(err) {
				return &Error{Code: ExitCode(err), Err: fmt.Errorf("%w; it may have been submitted: to have one job, "+
					"repeat the command with its idempotency_key %s", err, keyOf(commands[0].text))}
			}
			if err != nil {
				return err
			}
			return s.accepted(ctx, &receipt, o.wait, o.timeout)
		}
		return s.submitMany(ctx, commands, &o)
	})
	cmd.ValidArgsFunction = nil // The shell completes files.
	flags := cmd.Flags()
	o.dates.register(flags)
	o.order.register(cmd)
	o.class.register(cmd, "normal, or bulk: yield to all other work of the same kind")
	flags.BoolVar(&o.again, "again", false, "create new jobs, even for commands that were submitted before")
	flags.BoolVar(&o.wait, "wait", false, "wait for the jobs to end; exits with 1 if one does not succeed")
	flags.DurationVar(&o.timeout, "timeout", 0, "how long to wait for each job; 0 means forever")
	cmd.GroupID = GroupJobs
	return t.calls(cmd)
}

// command is a command in the input.
type command struct {
	line int
	text json.RawMessage
}

// readCommands reads the whole input, and gives each command an idempotency key. If a part of
// the input is invalid, nothing is sent.
func (s *session) readCommands(name string, again bool) ([]command, error) {
	var input []byte
	var err error
	if name == "-" {
		input, err = io.ReadAll(s.Stdin)
	} else {
		input, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, usagef("read the commands: %w", err)
	}
	return parseCommands(input, again)
}

// parseCommands parses commands in an array, or consecutive ones.
func parseCommands(input []byte, again bool) ([]command, error) {
	input = bytes.TrimPrefix(input, []byte("\ufeff")) // Some editors write a byte order mark.
	at := func(offset int64) int { return 1 + bytes.Count(input[:offset], []byte("\n")) }
	for offset := 0; offset < len(input); {
		r, size := utf8.DecodeRune(input[offset:])
		if r == utf8.RuneError && size == 1 {
			return nil, usagef("line %d: the input is not UTF-8", at(int64(offset)))
		}
		offset += size
	}
	decoder := json.NewDecoder(bytes.NewReader(input))
	end := ""
	if trimmed := bytes.TrimSpace(input); len(trimmed) > 0 && trimmed[0] == '[' {
		_, _ = decoder.Token() // the bracket
		end = "]"
	}
	var all []command
	copies := map[[sha256.Size]byte]int{}
	for decoder.More() {
		var text json.RawMessage
		if err := decoder.Decode(&text); err != nil {
			return nil, usagef("line %d: the input is not JSON: %w", at(decoder.InputOffset()), err)
		}
		line := at(decoder.InputOffset() - int64(len(text)))
		keyed, err := withKey(text, copies, again)
		if err != nil {
			return nil, usagef("line %d: a command must be a JSON object", line)
		}
		all = append(all, command{line, keyed})
	}
	// The decoder stops at any closing bracket, and at the end of an array that is not closed.
	switch rest := input[decoder.InputOffset():]; {
	case string(bytes.TrimSpace(rest)) == end:
	case len(bytes.TrimSpace(rest)) == 0:
		return nil, usagef("line %d: the input is cut short: its array has no end", at(int64(len(input))))
	default:
		next := int64(len(input) - len(bytes.TrimLeft(rest[len(end):], " \t\r\n")))
		return nil, usagef("line %d: the input is not JSON: there is text after the end of the commands", at(next))
	}
	if len(all) == 0 {
		return nil, usagef("the input has no command")
	}
	return all, nil
}

// withKey adds an idempotency key to a command that has none: a hash of its text, with a number
// for each further copy of the text, or, if again is set, a new key.
func withKey(text json.RawMessage, copies map[[sha256.Size]byte]int, again bool) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil || fields == nil {
		return nil, errors.New("not an object")
	}
	if _, ok := fields["idempotency_key"]; ok {
		return text, nil
	}
	key := uuid.NewString()
	if !again {
		plain, err := json.Marshal(fields) // sorts the names and removes white space
		if err != nil {
			return nil, err
		}
		hash := sha256.Sum256(plain)
		key = "cli-" + hex.EncodeToString(hash[:])
		if copies[hash]++; copies[hash] > 1 {
			key += "-" + strconv.Itoa(copies[hash])
		}
	}
	return withMembers(text, fmt.Appendf(nil, `"idempotency_key":%q`, key)), nil
}

// keyOf returns the idempotency key of a command that [withKey] returned.
func keyOf(text json.RawMessage) json.RawMessage {
	var c struct {
		Key json.RawMessage `json:"idempotency_key"`
	}
	_ = json.Unmarshal(text, &c) // It is an object.
	return c.Key
}

// withMembers adds members to a JSON object. It keeps the rest of the text, so that the server can name the
// column of a duplicate name.
func withMembers(object, members []byte) []byte {
	text := bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(object), []byte("}")))
	if len(text) > 1 { // more than the bracket
		text = append(text, ',')
	}
	return append(append(text, members...), '}')
}

// submitOne submits a command. It repeats a request that may not have arrived, which is safe
// because the command has a key.
func (s *session) submitOne(ctx context.Context, text []byte) (receipt api.CommandAccepted, err error) {
	err = s.repeat(ctx, func() (err error) {
		receipt, err = call[api.CommandAccepted](s.SubmitCommandWithBody(ctx, nil, "application/json", bytes.NewReader(text)))
		return err
	})
	return receipt, err
}

// repeat calls do again, a few times, if it fails because the server is unavailable.
func (s *session) repeat(ctx context.Context, do func() error) error {
	for failures := 1; ; failures++ {
		err := do()
		if ExitCode(err) != ExitUnavailable || failures > reconnects {
			return err
		}
		if err := s.pause(ctx, time.Duration(failures)*time.Second); err != nil {
			return err
		}
	}
}

// once makes a request with an idempotency key, the given one or a new one, and repeats it as
// [session.repeat] does. If the request may have succeeded under a new key, the error names the key.
func once[T any](ctx context.Context, s *session, given string, do func(key string) (T, error)) (answer T, err error) {
	key := cmp.Or(given, uuid.NewString())
	err = s.repeat(ctx, func() (err error) {
		answer, err = do(key)
		return err
	})
	if given == "" && unanswered(err) {
		err = &Error{Code: ExitCode(err), Err: fmt.Errorf(
			"%w; it may have been done: to have it done once, repeat it with --idempotency-key %s", err, key)}
	}
	return answer, err
}

// unanswered reports whether a request that ended with the error may have succeeded.
func unanswered(err error) bool {
	return ExitCode(err) == ExitUnavailable || ExitCode(err) == ExitInterrupted
}

const (
	// batchBytes bounds a batch, well below the server's default limit of a body. A batch
	// also has at most MaxBatch commands.
	batchBytes = 512 << 10
	// parallelism is how many waits for jobs are in progress at a time.
	parallelism = 4
)

// submitMany submits the commands in batches, and prints their outcomes. It sends one batch after the
// other: the protocol may give commands of several batches the same order key.
func (s *session) submitMany(ctx context.Context, commands []command, o *submission) error {
	results := make([]api.BatchItem, len(commands))
	progress := s.progress("submitted", len(commands))
	var err error
	for from, to := 0, 0; err == nil && from < len(commands); from = to {
		size := 0
		for to < len(commands) && to-from < api.MaxBatch && (to == from || size+len(commands[to].text) <= batchBytes) {
			size += len(commands[to].text)
			to++
		}
		err = s.repeat(ctx, func() error { return s.submitBatch(ctx, commands[from:to], results[from:to]) })
		if err == nil {
			progress.add(to - from)
		}
	}
	progress.end()
	if err != nil {
		todo := "repeating lucius submit creates no second job"
		if o.again {
			todo = "repeating lucius submit with --again creates second jobs for the others, see lucius jobs list"
		}
		return &Error{Code: ExitCode(err), Err: fmt.Errorf("%w; some commands were not submitted: %s", err, todo)}
	}
	if o.wait {
		return s.awaitMany(ctx, commands, results, o.timeout)
	}
	batch := api.BatchResult{Results: results}
	err = show(s, batch, func(p *page, batch api.BatchResult) { showBatch(p, commands, batch.Results) })
	return cmp.Or(err, refusedError(results))
}

// submitBatch submits the commands that have no final result yet. Its exit code is
// [ExitUnavailable] if the server was too busy for some of them. Those with their order key after
// them are then open, too.
func (s *session) submitBatch(ctx context.Context, commands []command, results []api.BatchItem) error {
	var open []int
	var body bytes.Buffer
	body.WriteString(`{"commands":[`)
	for i := range commands {
		if again(&results[i]) {
			if len(open) > 0 {
				body.WriteByte(',')
			}
			body.Write(commands[i].text)
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		return nil
	}
	body.WriteString("]}")
	answer, err := call[api.BatchResult](s.SubmitBatchWithBody(ctx, "application/json", &body))
	if isRefused(err, apierror.TooLarge, apierror.InvalidJSON) { // One command may have spoiled the whole batch.
		if len(commands) == 1 {
			results[0], err = s.submitAlone(ctx, commands[0].text)
			return err
		}
		half := len(commands) / 2
		if err := s.submitBatch(ctx, commands[:half], results[:half]); err != nil {
			return err
		}
		return s.submitBatch(ctx, commands[half:], results[half:])
	}
	if err != nil {
		return err
	}
	if len(answer.Results) != len(open) {
		return &Error{Code: ExitUnavailable, Err: errors.New("the server answered a different number of commands than it was sent")}
	}
	for i, result := range answer.Results {
		results[open[i]] = result
		if mayPass(result.Status) && result.Error != nil {
			err = problemError(result.Error)
		}
	}
	return err
}

// isRefused reports whether an error is a problem with one of the codes.
func isRefused(err error, codes ...apierror.Code) bool {
	fault, ok := errors.AsType[*Error](err)
	return ok && fault.Problem != nil && slices.Contains(codes, fault.Problem.Code)
}

// submitAlone submits a command because of which its batch was refused.
func (s *session) submitAlone(ctx context.Context, text []byte) (api.BatchItem, error) {
	receipt, err := call[api.CommandAccepted](s.SubmitCommandWithBody(ctx, nil, "application/json", bytes.NewReader(text)))
	if fault, ok := errors.AsType[*Error](err); ok && fault.Problem != nil && !mayPass(fault.Problem.Status) {
		return api.BatchItem{Status: fault.Problem.Status, Error: fault.Problem}, nil
	} else if err != nil {
		return api.BatchItem{}, err
	}
	return api.BatchItem{
		Status: http.StatusAccepted, JobID: receipt.JobID, CorrelationID: receipt.CorrelationID, State: receipt.State,
		Replayed: &receipt.Replayed,
	}, nil
}

// again reports whether to send a command with this result, whose status is 0 before the first time.
func again(result *api.BatchItem) bool {
	return result.Status == 0 || mayPass(result.Status) ||
		result.Error != nil && result.Error.Code == apierror.PredecessorRefused
}

// mayPass reports whether a refusal with this status may pass.
func mayPass(status int32) bool {
	return status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}

// showBatch writes how many commands were accepted, and the refused ones.
func showBatch(p *page, commands []command, results []api.BatchItem) {
	accepted, before := 0, 0
	var rows [][]string
	for i := range results {
		switch r := &results[i]; {
		case r.Error != nil:
			rows = append(rows, []string{strconv.Itoa(commands[i].line), string(r.Error.Code), problemError(r.Error).Error()})
		case r.Replayed != nil && *r.Replayed:
			before++
		default:
			accepted++
		}
	}
	p.line("%d accepted, %d accepted before, %d refused", accepted, before, len(rows))
	if len(rows) > 0 {
		p.line("")
		p.table([]string{"LINE", "CODE", "WHY"}, rows)
	}
}

// refusedError returns an error if commands were refused.
func refusedError(results []api.BatchItem) error {
	refused, code := 0, 0
	for i := range results {
		if p := results[i].Error; p != nil {
			refused, code = refused+1, ExitCode(problemError(p))
		}
	}
	if refused == 0 {
		return nil
	}
	return &Error{Code: code, Err: fmt.Errorf("%d of %d commands were refused", refused, len(results))}
}

// awaitMany waits until all accepted jobs have ended, or their timeouts, and prints how they did. If
// a wait fails, it begins no others, because the server may be away, and prints what it knows.
func (s *session) awaitMany(ctx context.Context, commands []command, results []api.BatchItem, timeout time.Duration) error {
	jobs := make([]api.Job, len(results))
	progress := s.progress("ended", len(results))
	var waiting errgroup.Group
	var broken atomic.Bool
	waiting.SetLimit(parallelism)
	for i := 0; i < len(results) && !broken.Load(); i++ {
		waiting.Go(func() error {
			if results[i].JobID != "" {
				job, err := s.end(ctx, results[i].JobID, timeout)
				if errors.Is(err, errLate) {
					jobs[i], err = call[api.Job](s.GetJob(ctx, results[i].JobID, nil))
				} else if err == nil {
					jobs[i] = *job
				}
				if err != nil {
					broken.Store(true)
					return err
				}
			}
			progress.add(1)
			return nil
		})
	}
	waitErr := waiting.Wait()
	progress.end()
	jobs = slices.DeleteFunc(jobs, func(job api.Job) bool { return job.JobID == "" })
	failed := slices.DeleteFunc(slices.Clone(jobs), func(job api.Job) bool { return job.State == api.JobStateSucceeded })
	shown := show(s, api.JobPage{Jobs: jobs}, func(p *page, list api.JobPage) {
		showBatch(p, commands, results)
		p.line("%d succeeded, %d did not", len(list.Jobs)-len(failed), len(failed))
		if len(failed) > 0 {
			p.line("")
			showJobs(p, api.JobPage{Jobs: failed})
		}
	})
	if s.output != "table" { // The jobs say nothing of commands that have none.
		for i := range results {
			if refused := results[i].Error; refused != nil {
				fmt.Fprintf(s.Stderr, "line %d: %s: %v\n", commands[i].line, refused.Code, problemError(refused))
			}
		}
	}
	switch {
	case shown != nil:
		return shown
	case waitErr != nil:
		return &Error{Code: ExitCode(waitErr), Err: fmt.Errorf("%w; the jobs continue: lucius jobs list", waitErr)}
	case len(failed) > 0:
		return &Error{Code: ExitFailed, Err: notSucceeded(failed, len(jobs), timeout)}
	}
	return refusedError(results)
}

// notSucceeded says how many jobs of all did not succeed, and how many of them have not ended.
func notSucceeded(failed []api.Job, all int, timeout time.Duration) error {
	late := 0
	for i := range failed {
		if failed[i].CompletedAt.IsZero() {
			late++
		}
	}
	if late == 0 {
		return fmt.Errorf("%d of %d jobs did not succeed", len(failed), all)
	}
	return fmt.Errorf("%d of %d jobs did not succeed, %d of them have not ended within %s", len(failed), all, late, timeout)
}
