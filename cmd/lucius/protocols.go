package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/commands"
	"github.com/lucius-project/lucius/pkg/strictyaml"
)

// errInvalidProtocols is returned when the checked files are invalid.
var errInvalidProtocols = errors.New("the protocol files are not valid")

// protocols returns lucius protocols.
func (p *program) protocols() *cobra.Command {
	cmd := &cobra.Command{
		Use: "protocols", GroupID: cli.GroupSetUp, Short: "Check protocol files, and show the protocols of a server",
		Example: "  lucius protocols validate ./protocols\n  lucius protocols list",
	}
	var output cli.Output
	check := &cobra.Command{
		Use: "validate [DIR|FILE...]", Short: "Check protocol files as one set, as the server does when it loads them",
		Long:    "Checks files and folders of protocols as one set; without arguments, the server's folder.",
		Example: "  lucius protocols validate\n  lucius protocols validate ./protocols new.yaml -o json",
		RunE:    func(_ *cobra.Command, paths []string) error { return p.validateProtocols(paths, output) },
	}
	output.Register(check)
	cmd.AddCommand(check)
	return cmd
}

// validateProtocols checks protocol files as one set.
func (p *program) validateProtocols(paths []string, output cli.Output) error {
	if err := output.Check(); err != nil {
		return err
	}
	if len(paths) == 0 {
		loaded, err := config.Load(nil, p.Environment)
		if err != nil {
			return err
		}
		paths = []string{loaded.ProtocolsDir}
	}
	report := validate(paths)
	if err := output.Print(p.Stdout, report, report.write); err != nil {
		return err
	}
	if !report.Valid {
		return errInvalidProtocols
	}
	return nil
}

// protocolReport is the result of a check.
type protocolReport struct {
	Valid     bool                 `json:"valid"`
	Protocols []*commands.Protocol `json:"protocols"`
	Problems  []strictyaml.Error   `json:"problems"`
}

// validate loads the protocols of the folders and files.
func validate(paths []string) protocolReport {
	report := protocolReport{Protocols: []*commands.Protocol{}, Problems: []strictyaml.Error{}}
	registry, err := commands.LoadProtocolPaths(paths...)
	if err == nil {
		report.Valid, report.Protocols = true, registry.Protocols()
		return report
	}
	problems := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		problems = joined.Unwrap()
	}
	for _, fault := range problems {
		file, ok := errors.AsType[*strictyaml.Error](fault)
		if !ok {
			file = &strictyaml.Error{Message: fault.Error()}
		}
		report.Problems = append(report.Problems, *file)
	}
	return report
}

// write writes one line for each problem or protocol.
func (r *protocolReport) write(w io.Writer) {
	for i := range r.Problems {
		fmt.Fprintln(w, &r.Problems[i])
	}
	for i := range r.Protocols {
		d := r.Protocols[i]
		version := "no version"
		if d.Version != "" {
			version = "version " + d.Version
		}
		steps := make([]string, len(d.Steps))
		for j, step := range d.Steps {
			steps[j] = step.ID
		}
		fmt.Fprintf(w, "%s: %s, takes %s, steps %s\n", d.ID, version,
			strings.Join(d.RequestTypes, ", "), strings.Join(steps, " > "))
	}
}
