package cli

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// The groups in the help of the root command. A command names its group in GroupID.
const (
	GroupServer  = "server"
	GroupJobs    = "jobs"
	GroupOperate = "operate"
	GroupSetUp   = "setup"
)

// Root returns the root command, with own and the commands of this package below it. [Run]
// runs it.
func Root(env *Env, own ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "lucius",
		Short: "Carry commands through their steps",
		Long: "Lucius carries the commands of a document pipeline through their steps. Commands for jobs and\n" +
			"operations call a server; lucius help exit-codes lists their exit codes.",
		Example: "  lucius demo\n  lucius serve\n  lucius jobs list --state FAILED_FINAL",
		Args:    cobra.ArbitraryArgs,
	}
	root.AddGroup(
		&cobra.Group{ID: GroupServer, Title: "Run a server:"},
		&cobra.Group{ID: GroupJobs, Title: "Jobs:"},
		&cobra.Group{ID: GroupOperate, Title: "Operate:"},
		&cobra.Group{ID: GroupSetUp, Title: "Set up:"},
	)
	about := help()
	root.SetHelpCommand(about)
	root.AddCommand(about)
	root.SetCompletionCommandGroupID(GroupSetUp)
	root.AddCommand(own...)
	for _, cmd := range (&tool{Env: *env}).commands() {
		if both, _, err := root.Find([]string{cmd.Name()}); err == nil && both != root { // such as protocols
			both.AddCommand(cmd.Commands()...)
			continue
		}
		root.AddCommand(cmd)
	}
	root.AddCommand(manPages(), &cobra.Command{Use: "exit-codes", Short: "What exit codes mean", Long: exitCodesHelp})
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	return root
}

// Run runs the command line args. [ExitCode] returns the exit code of its error: [ExitUsage]
// if the line itself is wrong, so that no command has started.
func Run(ctx context.Context, root *cobra.Command, args []string) error {
	root.SilenceErrors, root.SilenceUsage = true, true
	begun := false
	prepare(root, &begun)
	root.SetArgs(append([]string{}, args...)) // Given nil, cobra would use the arguments of the process.
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !begun {
		return usagef("%w%s: see %s --help", err, nearFlags(cmd, err), cmd.CommandPath())
	}
	return err
}

// nearFlags suggests flags of the command for one that it does not have.
func nearFlags(cmd *cobra.Command, err error) string {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return ""
	}
	known := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		known.AddCommand(&cobra.Command{Use: flag.Name, Run: func(*cobra.Command, []string) {}})
	})
	near := known.SuggestionsFor(unknown.GetSpecifiedName())
	if len(near) == 0 {
		return ""
	}
	return ", did you mean --" + strings.Join(near, " or --") + "?"
}

// help returns lucius help. Unlike cobra's own, it fails if there is no such command.
func help() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", GroupID: GroupSetUp, Short: "Help about any command", Example: "  lucius help jobs list",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (words []cobra.Completion, _ cobra.ShellCompDirective) {
			if about, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range about.Commands() {
					if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
						words = append(words, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return words, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("there is no command %q: see lucius --help", strings.Join(args, " "))
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// prepare makes a command and those below it set begun when they start, makes commands that
// only have subcommands show their help, and keeps flags in the order of their registration.
func prepare(cmd *cobra.Command, begun *bool) {
	cmd.Flags().SortFlags, cmd.PersistentFlags().SortFlags, cmd.LocalFlags().SortFlags = false, false, false
	cmd.DisableFlagsInUseLine = true
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*begun = true
			return run(cmd, args)
		}
	} else if cmd.HasSubCommands() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				*begun = true
				return cmd.Help()
			}
			cmd.SuggestionsMinimumDistance = 2
			text := cmd.CommandPath() + " has no command " + strconv.Quote(args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				text += ", did you mean " + strings.Join(near, " or ") + "?"
			}
			return usagef("%s", text)
		}
	}
	for _, sub := range cmd.Commands() {
		prepare(sub, begun)
	}
}

// Takes returns a check of the number of arguments. Its error shows the use line.
func Takes(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > most && most == 0:
			return usagef("%s takes no arguments, but was given %q", cmd.CommandPath(), args[0])
		case len(args) < least || len(args) > most:
			return usagef("usage: %s", cmd.UseLine())
		}
		return nil
	}
}

// manPages returns the command that writes the man pages, for packaging.
func manPages() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "man", Short: "Write the manual as man pages", Hidden: true, Args: Takes(0, 0),
		Example: "  lucius man --dir /usr/local/share/man/man1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "lucius"}, dir); err != nil {
				return usagef("write the man pages: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "existing folder for the pages")
	return cmd
}

// completeWords completes a flag with fixed words.
func completeWords(cmd *cobra.Command, flag string, words ...string) {
	complete := func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return words, cobra.ShellCompDirectiveNoFileComp
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // The flag does not exist, or has a completion already.
	}
}
