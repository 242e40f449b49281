package cli

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/api"
)

// priorities are the names of the classes.
var priorities = []string{string(api.PriorityNormal), string(api.PriorityBulk)}

// priority is the flag that names a class.
type priority string

func (c *priority) register(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar((*string)(c), "priority", "", usage)
	completeWords(cmd, "priority", priorities...)
}

// parse returns the class that the flag names, "" if it names none.
func (c *priority) parse() (api.Priority, error) {
	if *c != "" && !api.Priority(*c).Valid() {
		return "", usagef("--priority is %q, it must be normal or bulk", string(*c))
	}
	return api.Priority(*c), nil
}

// add adds the class that the flag names to commands.
func (c *priority) add(commands []command) error {
	class, err := c.parse()
	if err != nil || class == "" {
		return err
	}
	for i := range commands {
		one := &commands[i]
		var own struct {
			Priority json.RawMessage `json:"priority"`
		}
		if err := json.Unmarshal(one.text, &own); err != nil {
			return usagef("line %d: %w", one.line, err)
		}
		if own.Priority != nil {
			return usagef("line %d: the command has a priority: leave out --priority", one.line)
		}
		one.text = withMembers(one.text, []byte(`"priority":"`+class+`"`))
	}
	return nil
}

func (t *tool) jobsPrioritize() *cobra.Command {
	var reason string
	cmd := t.command(spec{
		use: "prioritize JOB normal|bulk", short: "Change the class of a job", args: 2, completes: jobIDs,
		long: "Makes a job normal or bulk. Bulk work yields to all other work of its service and step type. A directive\n" +
			"that waits in the pull queue moves at once; otherwise the class counts from the next one on.",
		example: "  lucius jobs prioritize JOB bulk\n  lucius jobs prioritize JOB normal --reason \"the customer waits\"",
	}, func(ctx context.Context, s *session, args []string) error {
		class := api.Priority(args[1])
		if !class.Valid() {
			return usagef("the class is %q, it must be normal or bulk", args[1])
		}
		job, err := call[api.Job](s.PrioritizeJob(ctx, args[0], api.PrioritizeRequest{Priority: class, Reason: reason}))
		if err != nil {
			return err
		}
		return show(s, job, func(p *page, job api.Job) {
			p.line("Job %s is %s: it is %s", job.JobID, class, p.state(string(job.State)))
		})
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the job's history")
	return cmd
}
