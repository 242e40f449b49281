package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/configfile"
	"github.com/lucius-project/lucius/pkg/protocol"
)

// errInvalidProtocols is returned when the checked files are invalid.
var errInvalidProtocols = errors.New("the protocol files are not valid")

// protocols checks protocol files as one set, as the server does when it loads them.
func (p *program) protocols(_ context.Context, args []string) error {
	if len(args) == 0 || args[0] != "validate" {
		return errors.New("usage: lucius protocols validate [--format text|json] [DIR|FILE...]")
	}
	flags := flag.NewFlagSet("protocols validate", flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	format := flags.String("format", "text", "text or json")
	var paths []string
	for args = args[1:]; ; args = flags.Args()[1:] { // Flags may also follow a path.
		if err := flags.Parse(args); err != nil {
			return err
		}
		if flags.NArg() == 0 {
			break
		}
		paths = append(paths, flags.Arg(0))
	}
	if *format != "text" && *format != "json" {
		return fmt.Errorf("--format is %q, must be text or json", *format)
	}
	if len(paths) == 0 {
		loaded, _, err := config.Load(nil, p.environment, p.stderr)
		if err != nil {
			return err
		}
		paths = []string{loaded.ProtocolsDir}
	}
	report := validate(paths)
	if err := report.write(p.stdout, *format); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if !report.Valid {
		return errInvalidProtocols
	}
	return nil
}

// protocolReport is the result of a check.
type protocolReport struct {
	Valid     bool                   `json:"valid"`
	Protocols []protocol.Description `json:"protocols"`
	Problems  []configfile.Error     `json:"problems"`
}

// validate loads the protocols of the folders and files.
func validate(paths []string) protocolReport {
	report := protocolReport{Protocols: []protocol.Description{}, Problems: []configfile.Error{}}
	registry, err := protocol.LoadPaths(paths...)
	if err == nil {
		report.Valid, report.Protocols = true, registry.List()
		return report
	}
	problems := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		problems = joined.Unwrap()
	}
	for _, fault := range problems {
		file, ok := errors.AsType[*configfile.Error](fault)
		if !ok {
			file = &configfile.Error{Message: fault.Error()}
		}
		report.Problems = append(report.Problems, *file)
	}
	return report
}

// write writes the report as JSON, or as one line for each problem or protocol.
func (r *protocolReport) write(w io.Writer, format string) error {
	if format == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	var out strings.Builder
	for i := range r.Problems {
		fmt.Fprintln(&out, &r.Problems[i])
	}
	for i := range r.Protocols {
		d := &r.Protocols[i]
		version := "no version"
		if d.Version != "" {
			version = "version " + d.Version
		}
		steps := make([]string, len(d.Steps))
		for j, step := range d.Steps {
			steps[j] = step.StepID
		}
		fmt.Fprintf(&out, "%s: %s, takes %s, steps %s\n", d.ProtocolID, version,
			strings.Join(d.RequestTypes, ", "), strings.Join(steps, " > "))
	}
	_, err := io.WriteString(w, out.String())
	return err
}
