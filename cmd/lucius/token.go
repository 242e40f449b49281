package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/lucius-project/lucius/pkg/auth"
)

// errTokenUsage is returned for a command line that asks for no token.
var errTokenUsage = errors.New("say: lucius token new --name NAME [--role ROLE:TENANTS[:SERVICES]]... [--file FILE]")

// token does what can be done with tokens without a server.
func (p *program) token(_ context.Context, args []string) error {
	if len(args) == 0 || args[0] != "new" {
		return errTokenUsage
	}
	return p.newToken(args[1:])
}

// newToken makes a token, prints it, and adds its hash to a token file or prints
// what to add.
func (p *program) newToken(args []string) error {
	var entry auth.Entry
	flags := flag.NewFlagSet("token new", flag.ContinueOnError)
	flags.SetOutput(p.stderr)
	flags.StringVar(&entry.Name, "name", "", "the caller's name (required)")
	file := flags.String("file", "", "add the token's hash to this file; without it, what to add is printed")
	flags.Func("role", "ROLE:TENANTS[:SERVICES], such as submit:tenant_a or platform:*:ocr,embed; may be repeated,\n"+
		"and is left out for one more token of a caller that the file has", func(text string) error {
		grant, err := auth.ParseGrant(text)
		entry.Grants = append(entry.Grants, grant)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || entry.Name == "" {
		return errTokenUsage
	}
	token := auth.NewToken()
	entry.TokenHash = auth.HashToken(token)
	if *file != "" {
		return p.addToken(*file, token, entry)
	}
	stanza, err := entry.Stanza()
	if err != nil {
		return err
	}
	fmt.Fprintln(p.stderr, "The token, which is not shown again, and what to add to the token file by hand:")
	return p.show(token + "\n\n" + stanza)
}

// addToken adds the token to the file, and prints it once it is there: a token
// that was shown works.
func (p *program) addToken(file, token string, entry auth.Entry) error {
	err := auth.AppendFile(file, entry)
	if errors.Is(err, auth.ErrEdit) {
		return fmt.Errorf("%w; without --file a token comes with what to add by hand", err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stderr, "Added to %s. The token, which is not shown again:\n", file)
	return p.show(token + "\n")
}

// show prints to standard output.
func (p *program) show(text string) error {
	if _, err := fmt.Fprint(p.stdout, text); err != nil {
		return fmt.Errorf("print the token: %w", err)
	}
	return nil
}
