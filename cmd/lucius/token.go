package main

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/auth"
)

// errTokenUsage is returned for a malformed command line.
var errTokenUsage = errors.New("usage: lucius token new --name NAME [--role ROLE:TENANTS[:SERVICES]]... [--file FILE]")

// token makes a token and prints it, and adds its hash to a token file or prints what
// to add.
func (p *program) token(_ context.Context, args []string) error {
	if len(args) == 0 || args[0] != "new" {
		return errTokenUsage
	}
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
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 || entry.Name == "" {
		return errTokenUsage
	}
	token := auth.NewToken()
	entry.TokenHash = auth.HashToken(token)
	text := token + "\n"
	if *file == "" {
		stanza, err := entry.Stanza()
		if err != nil {
			return err
		}
		text += "\n" + stanza
		fmt.Fprintln(p.stderr, "The token, which is not shown again, and what to add to the token file by hand:")
	} else { // A token is printed only once the file has it, so that every printed token works.
		err := auth.AppendFile(*file, entry)
		if errors.Is(err, auth.ErrEdit) {
			return fmt.Errorf("%w; without --file a token comes with what to add by hand", err)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(p.stderr, "Added to %s. The token, which is not shown again:\n", *file)
	}
	if _, err := fmt.Fprint(p.stdout, text); err != nil {
		return fmt.Errorf("print the token: %w", err)
	}
	return nil
}

// webhookSecret prints the secrets that a tenant's receivers verify with.
func (p *program) webhookSecret(_ context.Context, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("webhook-secret takes one argument, the tenant's id")
	}
	loaded, _, err := config.Load(nil, p.environment, p.stderr)
	if err != nil {
		return err
	}
	if len(loaded.WebhookSecrets) == 0 {
		return errors.New("LUCIUS_WEBHOOK_SECRETS is not set, so no receiver can verify a webhook")
	}
	for _, secret := range loaded.WebhookSecrets {
		if _, err := fmt.Fprintln(p.stdout, secret.ForTenant(args[0]).Reveal()); err != nil {
			return fmt.Errorf("print the secret: %w", err)
		}
	}
	return nil
}
