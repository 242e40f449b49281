// Package cli is the command line of people and scripts who use a server: each command
// calls the public API with the generated client and the caller's own token, so it can do
// what they may and no more.
//
//	cmd/lucius ──► Root ──► a command ──► session ──► api.Client ──► server
//	                            │             └─ flags > environment > context
//	                            ▼
//	                 print: table, json or yaml      errors: one sentence, one exit code
//
// A command is a method of tool that returns a cobra command made by tool.command:
//
//	func (t *tool) jobsGet() *cobra.Command {
//		return t.command(spec{
//			use: "get JOB", short: "Show a job with its steps", example: "  lucius jobs get 0197…", args: 1,
//		}, func(ctx context.Context, s *session, args []string) error {
//			job, err := call[api.Job](s.GetJob(ctx, args[0], nil))
//			if err != nil {
//				return err
//			}
//			return show(s, job, showJob)
//		})
//	}
//
// It is added to a group of tool.commands, or to another command. [call] turns every fault
// into an [Error] with its sentence and exit code. show prints the API's own type as JSON
// or YAML, and by the function as text for people; it removes what could control a terminal.
// A command that changes much asks with session.confirm first. Its flags are those of the
// cobra command.
//
// Tests run Root with an [Env] of their own. Those in this package have a server that
// answers what the test says, and compare with golden files (-update writes them); those in
// cmd/lucius have a real one.
package cli
