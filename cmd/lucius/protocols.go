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
	"github.com/lucius-project/lucius/pkg/protocol"
	"github.com/lucius-project/lucius/pkg/reload"
)

// errInvalidProtocols is returned when protocol files were checked and something
// is wrong with them.
var errInvalidProtocols = errors.New("the protocol files are not valid")

// protocols does what can be done with protocol files without a server.
func (p *program) protocols(_ context.Context, args []string) error {
	if len(args) == 0 || args[0] != "validate" {
		return errors.New("say: lucius protocols validate [--format text|json] [DIR|FILE...]")
	}
	return p.validateProtocols(args[1:])
}

// validateProtocols checks protocol files as one set, as the server does when it
// loads them.
func (p *program) validateProtocols(args []string) error {
	flags := flag.NewFlagSet("protocols validate", flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	format := flags.String("format", "text", "text or json")
	paths, err := parseAnywhere(flags, args)
	if err != nil {
		return err
	}
	if *format != "text" && *format != "json" {
		return fmt.Errorf("--format is %q, must be text or json", *format)
	}
	if len(paths) == 0 {
		loaded, _, err := config.Load(nil, p.lookup, p.stderr)
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

// parseAnywhere parses flags that may stand before, between and behind the
// arguments, which it returns.
func parseAnywhere(flags *flag.FlagSet, args []string) ([]string, error) {
	var rest []string
	for {
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		if flags.NArg() == 0 {
			return rest, nil
		}
		rest, args = append(rest, flags.Arg(0)), flags.Args()[1:]
	}
}

// protocolReport is what was found in protocol files.
type protocolReport struct {
	Valid     bool                   `json:"valid"`
	Protocols []protocol.Description `json:"protocols"`
	Problems  []protocolProblem      `json:"problems"`
}

// protocolProblem is one thing that is wrong. File is empty where no file could
// be read, and Line is 0 where a whole file is meant.
type protocolProblem struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Message string `json:"message"`

	text string // for people, in one line
}

// validate loads the protocols of the folders and files.
func validate(paths []string) protocolReport {
	report := protocolReport{Protocols: []protocol.Description{}, Problems: []protocolProblem{}}
	registry, err := protocol.LoadPaths(paths...)
	if err == nil {
		report.Valid, report.Protocols = true, registry.List()
		return report
	}
	problems := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		problems = joined.Unwrap()
	}
	for _, problem := range problems {
		found := protocolProblem{Message: problem.Error(), text: problem.Error()}
		if file, ok := errors.AsType[*reload.FileError](problem); ok {
			found.File, found.Line, found.Message = file.File, file.Line, file.Message
		}
		report.Problems = append(report.Problems, found)
	}
	return report
}

// write writes the report, for people or for programs.
func (r *protocolReport) write(w io.Writer, format string) error {
	if format == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	var out strings.Builder
	for _, problem := range r.Problems {
		fmt.Fprintln(&out, problem.text)
	}
	for i := range r.Protocols {
		fmt.Fprintln(&out, protocolLine(&r.Protocols[i]))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// protocolLine says in one line what a protocol is.
func protocolLine(d *protocol.Description) string {
	version := "no version"
	if d.Version != "" {
		version = "version " + d.Version
	}
	steps := make([]string, len(d.Steps))
	for i, step := range d.Steps {
		steps[i] = step.StepID
	}
	return fmt.Sprintf("%s: %s, takes %s, steps %s", d.ProtocolID, version,
		strings.Join(d.RequestTypes, ", "), strings.Join(steps, " > "))
}
