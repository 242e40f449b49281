package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// edits holds the flags that say what is different in reruns.
type edits struct {
	from, fromStep, patch, patchFile, protocol string
	noCallbacks                                bool
	class                                      priority
}

func (e *edits) register(cmd *cobra.Command, from string) {
	flags := cmd.Flags()
	flags.StringVar(&e.from, "from", "", "failed, which keeps the results before the failed step, or start; "+from)
	flags.StringVar(&e.fromStep, "from-step", "", "the step to start at, in place of --from")
	flags.StringVar(&e.patch, "patch", "", "JSON to merge into the payload (RFC 7396): null removes a member")
	flags.StringVar(&e.patchFile, "patch-file", "", "file with such JSON")
	flags.StringVar(&e.protocol, "protocol", string(api.RerunProtocolKept), "kept (the steps and policies of the job) or current")
	flags.BoolVar(&e.noCallbacks, "no-callbacks", false, "leave out the callback URLs of the job")
	e.class.register(cmd, "normal or bulk, which yields to all other work of the same kind; default that of the job")
	completeWords(cmd, "from", string(api.RerunFromFailed), string(api.RerunFromStart))
	completeWords(cmd, "protocol", string(api.RerunProtocolKept), string(api.RerunProtocolCurrent))
}

// request returns a request with what the flags say.
func (e *edits) request() (*api.RerunRequest, error) {
	request := &api.RerunRequest{From: api.RerunFrom(e.from), FromStep: optional(e.fromStep)}
	switch {
	case e.from != "" && e.fromStep != "":
		return nil, usagef("name --from or --from-step, not both")
	case e.from != "" && !request.From.Valid():
		return nil, usagef("--from is %q, it must be failed or start", e.from)
	case !api.RerunProtocol(e.protocol).Valid():
		return nil, usagef("--protocol is %q, it must be kept or current", e.protocol)
	case e.patch != "" && e.patchFile != "":
		return nil, usagef("name --patch or --patch-file, not both")
	}
	if e.protocol == string(api.RerunProtocolCurrent) {
		request.Protocol = api.RerunProtocolCurrent
	}
	class, err := e.class.parse()
	if err != nil {
		return nil, err
	}
	if request.Priority = class; e.noCallbacks {
		request.Callbacks = api.RerunCallbacksNone
	}
	if e.patch != "" {
		request.PayloadPatch = json.RawMessage(e.patch)
	}
	if err := readObject(e.patchFile, &request.PayloadPatch); err != nil {
		return nil, err
	}
	return request, checkObject("--patch", request.PayloadPatch)
}

// readObject reads a file, if one is named.
func readObject(name string, into *json.RawMessage) error {
	if name == "" {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read a correction: %w", err)
	}
	*into = text
	return nil
}

// checkObject checks the JSON of a flag, if there is any.
func checkObject(flag string, text json.RawMessage) error {
	var object map[string]json.RawMessage
	if text != nil && (json.Unmarshal(text, &object) != nil || object == nil) {
		return usagef("%s must be a JSON object", flag)
	}
	return nil
}

// rerun holds the flags of a rerun.
type rerun struct {
	edits

	payloadFile, input, output string
	resolve, tags              []string
	newest, dryRun             bool
	reason                     string
}

func (t *tool) jobsRerun() *cobra.Command {
	var r rerun
	var wait bool
	cmd := t.command(spec{
		use: "rerun JOB", short: "Run an ended job again, as a new job", args: 1, completes: jobIDs,
		long: "Runs an ended job again, with corrections if flags give some. Repeating a rerun with the same\n" +
			"corrections from the same step returns the same new job. A step that was done by hand is\n" +
			"resolved with the output that it has: the rerun takes that, and goes on after it. With --dry-run it\n" +
			"shows what would run, and with which differences.",
		example: "  lucius jobs rerun JOB --reason \"the scanner is clean\"\n  lucius jobs rerun JOB --from start --wait\n" +
			"  lucius jobs rerun JOB --patch '{\"language\": \"de\"}'\n  lucius jobs rerun JOB --resolve ocr=s3://bucket/by-hand.json\n" +
			"  lucius jobs rerun JOB --from-step embed --protocol current --newest",
	}, func(ctx context.Context, s *session, args []string) error {
		request, err := r.request()
		if err != nil {
			return err
		}
		if request.DryRun {
			preview, err := call[api.RerunPreview](s.RerunJob(ctx, args[0], *request))
			if err != nil {
				return err
			}
			return show(s, preview, showRerunPreview)
		}
		accepted, err := call[api.CommandAccepted](s.RerunJob(ctx, args[0], *request))
		if err != nil {
			return err
		}
		return s.accepted(ctx, &accepted, wait, 0)
	})
	r.register(cmd, "default failed")
	flags := cmd.Flags()
	flags.StringVar(&r.payloadFile, "payload-file", "", "file with JSON that replaces the payload")
	flags.StringVar(&r.input, "input-uri", "", "URI of another input")
	flags.StringVar(&r.output, "output-uri", "", "URI of another output")
	flags.StringArrayVar(&r.resolve, "resolve", nil,
		"a step that was done by hand, STEP=URI of its output; may be repeated; needs the role admin")
	flags.BoolVar(&r.newest, "newest", false, "rerun the last job in the chain of reruns of this one")
	flags.BoolVar(&r.dryRun, "dry-run", false, "show what the rerun would do; change nothing")
	flags.StringArrayVar(&r.tags, "tag", nil, "a tag for the new job beside those of the old one, key=value; may be repeated")
	flags.StringVar(&r.reason, "reason", "", "why, for the job's history")
	flags.BoolVar(&wait, "wait", false, "wait for the job to end; exits with 1 if it does not succeed")
	return cmd
}

// request returns the request that the flags make.
func (r *rerun) request() (*api.RerunRequest, error) {
	request, err := r.edits.request()
	if err != nil {
		return nil, err
	}
	request.Newest, request.DryRun, request.Reason = r.newest, r.dryRun, r.reason
	if request.Tags, err = api.ParseTags(r.tags); err != nil {
		return nil, usagef("--%v", err)
	}
	if err := readObject(r.payloadFile, &request.Payload); err != nil {
		return nil, err
	}
	if r.input != "" {
		request.InputRef = api.RefTo(r.input)
	}
	if r.output != "" {
		request.OutputRef = api.RefTo(r.output)
	}
	for _, one := range r.resolve {
		step, ok := api.ParseResolved(one)
		if !ok {
			return nil, usagef("--resolve is %q, it must be STEP=URI", one)
		}
		request.Resolve = append(request.Resolve, step)
	}
	return request, checkObject("--payload-file", request.Payload)
}

// showRerunPreview writes what a rerun would do.
func showRerunPreview(p *page, preview api.RerunPreview) {
	if preview.Live {
		p.line("Job %s, the newest rerun, is live: the rerun would return it. Nothing has been changed.", preview.JobID)
		return
	}
	p.fields("rerun of", preview.JobID, "protocol", strings.TrimSpace(preview.ProtocolID+" "+preview.ProtocolVersion))
	p.line("")
	steps := make([][]string, len(preview.Steps))
	for i := range preview.Steps {
		step := &preview.Steps[i]
		steps[i] = []string{step.StepID, step.StepType, step.Service, cmp.Or(string(step.Outcome), "executed")}
	}
	p.table([]string{"STEP", "TYPE", "SERVICE", "WOULD BE"}, steps)
	if len(preview.Changes) > 0 {
		p.line("")
		p.table([]string{"CHANGES", "BEFORE", "AFTER"}, changeRows(preview.Changes))
	}
	p.line("")
	if preview.ExistingJobID != "" {
		p.line("Job %s is this rerun already: the rerun would return it. Nothing has been changed.", preview.ExistingJobID)
		return
	}
	p.line("Nothing has been changed.")
}

// changeRows returns a row for each difference between two commands.
func changeRows(changes []api.CommandChange) [][]string {
	rows := make([][]string, len(changes))
	for i, change := range changes {
		rows[i] = []string{change.Pointer, shortened(change.Before), shortened(change.After)}
	}
	return rows
}

// shortened returns a JSON value, or its beginning if it is long, and a dash for none.
func shortened(value json.RawMessage) string {
	const most = 60
	text := []rune(cmp.Or(string(value), "-"))
	if len(text) > most {
		text = append(text[:most-1], '…')
	}
	return string(text)
}
