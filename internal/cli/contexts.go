package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// contexts is the contexts file.
type contexts struct {
	Current  string                `yaml:"current,omitempty"`
	Contexts map[string]connection `yaml:"contexts"`
}

// contextsPath returns the path of the contexts file.
func (e *Env) contextsPath() (string, error) {
	if path := e.get("LUCIUS_CONFIG"); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", usagef("the user has no configuration folder: set LUCIUS_CONFIG to the path of the contexts file")
	}
	return filepath.Join(dir, "lucius", "contexts.yaml"), nil
}

// readContexts reads the contexts file. Without a file there are no contexts.
func (e *Env) readContexts() (*contexts, error) {
	c := &contexts{Contexts: map[string]connection{}}
	path, err := e.contextsPath()
	if err != nil { // Without a home, as in a container, flags and variables suffice.
		return c, nil //nolint:nilerr // Storing a context reports this error.
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if info, err := os.Stat(path); err == nil && runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		fmt.Fprintf(e.Stderr, "Other users of this host can read your tokens: chmod 600 %s\n", path)
	}
	if err == nil && len(text) > 0 {
		err = yaml.UnmarshalWithOptions(text, c, yaml.Strict())
	}
	if _, ok := errors.AsType[yaml.Error](err); ok {
		err = errors.New(yaml.FormatError(err, false, false)) // Do not quote the lines, which may hold a token.
	}
	if err != nil {
		return nil, usagef("the contexts file %s cannot be read: %w", path, err)
	}
	return c, nil
}

// write replaces the contexts file. Only its owner may read it, because it can hold tokens.
func (c *contexts) write(e *Env) error {
	path, err := e.contextsPath()
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("encode the contexts: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("create the folder of the contexts file: %w", err)
	}
	file, err := os.CreateTemp(filepath.Dir(path), ".contexts-*") // has mode 0600
	if err != nil {
		return fmt.Errorf("write the contexts file: %w", err)
	}
	_, err = file.Write(text)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write the contexts file: %w", errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}

// named returns the context of that name.
func (c *contexts) named(name string) (connection, error) {
	found, ok := c.Contexts[name]
	if !ok {
		return connection{}, &Error{Code: ExitNotFound, Err: fmt.Errorf(
			"there is no context %q: lucius context list shows all contexts", name)}
	}
	return found, nil
}

// contextCommands returns lucius context.
func (t *tool) contextCommands() *cobra.Command {
	cmd := &cobra.Command{
		Use: "context", GroupID: GroupSetUp, Short: "Store the servers that you call",
		Long: "A context is a server and how to call it. Contexts are stored in lucius/contexts.yaml in your\n" +
			"configuration folder, or in the file that LUCIUS_CONFIG names; only you may read that file.",
		Example: "  lucius context set prod --url https://lucius.example.com --token-file ~/.lucius-token\n  lucius context use prod",
	}
	cmd.AddCommand(t.contextList(), t.contextSet(), t.contextUse(), t.contextDelete())
	return cmd
}

// listedContext is a context without its token, for output.
type listedContext struct {
	Name    string `json:"name"`
	Current bool   `json:"current"`
	connection
	HasToken bool `json:"has_token"`
}

func (t *tool) contextList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "List the contexts", Example: "  lucius context list", Args: Takes(0, 0),
		RunE: func(*cobra.Command, []string) error {
			if err := t.output.Check(); err != nil {
				return err
			}
			all, err := t.readContexts()
			if err != nil {
				return err
			}
			list := []listedContext{}
			for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
				entry := all.Contexts[name]
				list = append(list, listedContext{name, name == all.Current, entry, entry.Token+entry.TokenFile != ""})
			}
			return show(&session{tool: t}, list, func(p *page, list []listedContext) {
				rows := [][]string{}
				for _, c := range list {
					current, token := "", "no token"
					if c.Current {
						current = "*"
					}
					if c.HasToken {
						token = "with a token"
					}
					rows = append(rows, []string{current, c.Name, c.URL, token})
				}
				p.table([]string{"", "NAME", "URL", "CREDENTIAL"}, rows)
			})
		},
	}
	t.output.Register(cmd)
	return cmd
}

// contextName matches names of contexts that need no quotes in a shell or in YAML.
var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (t *tool) contextSet() *cobra.Command {
	cmd := &cobra.Command{
		Use: "set NAME", Short: "Add a context, or change the given parts of one", Args: Takes(1, 1),
		Example: "  lucius context set prod --url https://lucius.example.com --token-file ~/.lucius-token",
	}
	var set connection
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !contextName.MatchString(args[0]) {
			return usagef("the context's name is %q, it must consist of letters, digits, '.', '_' and '-', "+
				"and begin with a letter or digit", args[0])
		}
		all, err := t.readContexts()
		if err != nil {
			return err
		}
		entry := all.Contexts[args[0]]
		if err := entry.change(&set, cmd.Flags()); err != nil {
			return err
		}
		if all.Contexts[args[0]] = entry; all.Current == "" {
			all.Current = args[0]
		}
		return all.write(&t.Env)
	}
	set.register(cmd.Flags())
	return cmd
}

// change sets the parts that were given by flags. A token replaces a token file, and vice
// versa.
func (w *connection) change(to *connection, flags *pflag.FlagSet) (err error) {
	switch token, file := flags.Changed("token"), flags.Changed("token-file"); {
	case token && file:
		return usagef("a context has a token or a token file, not both")
	case token:
		w.TokenFile = ""
	case file:
		w.Token = ""
	}
	stored := w.fields()
	for name, value := range to.fields() {
		if !flags.Changed(name) {
			continue
		}
		*stored[name] = *value
		if name != "url" && name != "token" && *value != "" { // Later commands may run in another folder.
			if *stored[name], err = filepath.Abs(*value); err != nil {
				return usagef("--%s: %w", name, err)
			}
		}
	}
	_, err = parseServer(w.URL)
	return err
}

func (t *tool) contextUse() *cobra.Command {
	return t.edits(&cobra.Command{Use: "use NAME", Short: "Use a context from now on", Example: "  lucius context use prod"},
		func(all *contexts, name string) { all.Current = name })
}

func (t *tool) contextDelete() *cobra.Command {
	return t.edits(&cobra.Command{Use: "delete NAME", Short: "Delete a context", Example: "  lucius context delete prod"},
		func(all *contexts, name string) {
			if delete(all.Contexts, name); all.Current == name {
				all.Current = ""
			}
		})
}

// edits makes cmd change the contexts by calling edit with the name of an existing one.
func (t *tool) edits(cmd *cobra.Command, edit func(all *contexts, name string)) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = Takes(1, 1), t.completeContexts
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		all, err := t.readContexts()
		if err != nil {
			return err
		}
		if _, err := all.named(args[0]); err != nil {
			return err
		}
		edit(all, args[0])
		return all.write(&t.Env)
	}
	return cmd
}

// completeContexts completes the name of a context.
func (t *tool) completeContexts(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	all, err := t.readContexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(all.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
