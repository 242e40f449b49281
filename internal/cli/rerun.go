package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// rerun holds the flags of a rerun.
type rerun struct {
	from, fromStep, patch, patchFile, payloadFile string
	input, output, protocol                       string
	resolve, tags                                 []string
	newest, noCallbacks                           bool
	reason                                        string
}

func (t *tool) jobsRerun() *cobra.Command {
	var r rerun
	var wait bool
	cmd := t.command(spec{
		use: "rerun JOB", short: "Run an ended job again, as a new job", args: 1, completes: jobIDs,
		long: "Runs an ended job again, with corrections if flags give some. Repeating a rerun with the same\n" +
			"corrections from the same step returns the same new job. A step that was done by hand is\n" +
			"resolved with the output that it has: the rerun takes that, and goes on after it.",
		example: "  lucius jobs rerun JOB --reason \"the scanner is clean\"\n  lucius jobs rerun JOB --from start --wait\n" +
			"  lucius jobs rerun JOB --patch '{\"language\": \"de\"}'\n  lucius jobs rerun JOB --resolve ocr=s3://bucket/by-hand.json\n" +
			"  lucius jobs rerun JOB --from-step embed --protocol current --newest",
	}, func(ctx context.Context, s *session, args []string) error {
		request, err := r.request()
		if err != nil {
			return err
		}
		accepted, err := call[api.CommandAccepted](s.RerunJob(ctx, args[0], *request))
		if err != nil {
			return err
		}
		return s.accepted(ctx, &accepted, wait, 0)
	})
	flags := cmd.Flags()
	registerFrom(cmd, &r.from)
	flags.StringVar(&r.fromStep, "from-step", "", "the step to start at, in place of --from")
	flags.StringVar(&r.patch, "patch", "", "JSON to merge into the payload (RFC 7396): null removes a member")
	flags.StringVar(&r.patchFile, "patch-file", "", "file with such JSON")
	flags.StringVar(&r.payloadFile, "payload-file", "", "file with JSON that replaces the payload")
	flags.StringVar(&r.input, "input-uri", "", "URI of another input")
	flags.StringVar(&r.output, "output-uri", "", "URI of another output")
	flags.StringArrayVar(&r.resolve, "resolve", nil,
		"a step that was done by hand, STEP=URI of its output; may be repeated; needs the role admin")
	flags.StringVar(&r.protocol, "protocol", string(api.RerunProtocolKept), "kept (the steps and policies of the job) or current")
	flags.BoolVar(&r.newest, "newest", false, "rerun the last job in the chain of reruns of this one")
	flags.BoolVar(&r.noCallbacks, "no-callbacks", false, "leave out the callback URLs of the job")
	flags.StringArrayVar(&r.tags, "tag", nil, "a tag for the new job beside those of the old one, key=value; may be repeated")
	flags.StringVar(&r.reason, "reason", "", "why, for the job's history")
	flags.BoolVar(&wait, "wait", false, "wait for the job to end; exits with 1 if it does not succeed")
	completeWords(cmd, "protocol", string(api.RerunProtocolKept), string(api.RerunProtocolCurrent))
	return cmd
}

// request returns the request that the flags make.
func (r *rerun) request() (*api.RerunRequest, error) {
	request := &api.RerunRequest{
		From: api.RerunFrom(r.from), FromStep: optional(r.fromStep), Protocol: api.RerunProtocol(r.protocol),
		Newest: r.newest, Reason: r.reason,
	}
	if r.fromStep != "" {
		if r.from != string(api.RerunFromFailed) {
			return nil, usagef("name --from or --from-step, not both")
		}
		request.From = ""
	} else if err := checkFrom(r.from); err != nil {
		return nil, err
	}
	if !request.Protocol.Valid() {
		return nil, usagef("--protocol is %q, it must be kept or current", r.protocol)
	}
	if r.noCallbacks {
		request.Callbacks = api.RerunCallbacksNone
	}
	var err error
	if request.Tags, err = api.ParseTags(r.tags); err != nil {
		return nil, usagef("--%v", err)
	}
	if err := r.payload(request); err != nil {
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
	return request, nil
}

// payload sets the corrections of the payload.
func (r *rerun) payload(request *api.RerunRequest) error {
	if r.patch != "" && r.patchFile != "" {
		return usagef("name --patch or --patch-file, not both")
	}
	if r.patch != "" {
		request.PayloadPatch = json.RawMessage(r.patch)
	}
	for _, file := range []struct {
		name string
		into *json.RawMessage
	}{{r.patchFile, &request.PayloadPatch}, {r.payloadFile, &request.Payload}} {
		if file.name == "" {
			continue
		}
		text, err := os.ReadFile(file.name)
		if err != nil {
			return fmt.Errorf("read a correction: %w", err)
		}
		*file.into = text
	}
	for name, text := range map[string]json.RawMessage{"--patch": request.PayloadPatch, "--payload-file": request.Payload} {
		var object map[string]json.RawMessage
		if text != nil && (json.Unmarshal(text, &object) != nil || object == nil) {
			return usagef("%s must be a JSON object", name)
		}
	}
	return nil
}
