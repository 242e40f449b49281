// Package cli is the command line for people and scripts that use a server. Each command
// calls the public API with the generated client and the caller's own token, so it can do
// only what the caller may.
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
// tool.commands, or another command, adds it. [call] turns every failure into an [Error] with
// a sentence and an exit code. show prints the API's own type as JSON or YAML, or as text for
// people, which the function writes; it removes characters that could control a terminal. A
// command with large effects asks first, with session.confirm. Its flags are those of the
// cobra command.
//
// Tests run Root with an [Env] of their own. Those in this package use a server with scripted
// responses, and compare output with golden files (-update writes them); those in cmd/lucius
// use a real server.
package cli
