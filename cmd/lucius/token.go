package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/lucius-project/lucius/internal/cli"
	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/auth"
)

// token returns lucius token, which makes a token and prints it, and adds its hash to a
// token file or prints what to add.
func (p *program) token() *cobra.Command {
	cmd := &cobra.Command{
		Use: "token", GroupID: cli.GroupSetUp, Short: "Make a bearer token",
		Example: "  lucius token new --name ci --role submit:tenant_a --file tokens.yaml",
	}
	var name, file string
	var roles []string
	create := &cobra.Command{
		Use: "new", Short: "Make a token for a caller", Args: cli.Takes(0, 0), Example: cmd.Example,
		RunE: func(*cobra.Command, []string) error { return p.newToken(name, file, roles) },
	}
	flags := create.Flags()
	flags.StringVar(&name, "name", "", "the caller's name (required)")
	flags.StringVar(&file, "file", "", "add the token's hash to this file; without it, the lines to add are printed")
	flags.StringArrayVar(&roles, "role", nil, "ROLE:TENANTS[:SERVICES], such as submit:tenant_a or platform:*:ocr,embed;\n"+
		"may be repeated; leave it out to add a token for a caller that is already in the file")
	cmd.AddCommand(create)
	return cmd
}

func (p *program) newToken(name, file string, roles []string) error {
	entry := auth.Entry{Name: name}
	if name == "" {
		return &cli.Error{Code: cli.ExitUsage, Err: errors.New("name the caller with --name")}
	}
	for _, role := range roles {
		grant, err := auth.ParseGrant(role)
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Err: err}
		}
		entry.Grants = append(entry.Grants, grant)
	}
	token := auth.NewToken()
	entry.TokenHash = auth.HashToken(token)
	text := token + "\n"
	if file == "" {
		stanza, err := entry.Stanza()
		if err != nil {
			return err
		}
		text += "\n" + stanza
		fmt.Fprintln(p.Stderr, "The token, which is not shown again, and the lines to add to the token file:")
	} else { // A token is printed only once the file has it, so that every printed token works.
		err := auth.AppendFile(file, entry)
		if errors.Is(err, auth.ErrEdit) {
			return fmt.Errorf("%w; without --file the command prints the lines to add by hand", err)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(p.Stderr, "Added to %s. The token, which is not shown again:\n", file)
	}
	if _, err := fmt.Fprint(p.Stdout, text); err != nil {
		return fmt.Errorf("print the token: %w", err)
	}
	return nil
}

// webhookSecret returns lucius webhook-secret, which prints the secrets that a tenant's
// receivers verify with.
func (p *program) webhookSecret() *cobra.Command {
	return &cobra.Command{
		Use: "webhook-secret TENANT", GroupID: cli.GroupSetUp, Short: "Print the secret that a tenant's receivers verify with",
		Example: "  lucius webhook-secret tenant_a", Args: cli.Takes(1, 1),
		RunE: func(_ *cobra.Command, args []string) error {
			loaded, err := config.Load(nil, p.Environment)
			if err != nil {
				return err
			}
			if len(loaded.WebhookSecrets) == 0 {
				return errors.New("LUCIUS_WEBHOOK_SECRETS is not set, so no receiver can verify a webhook")
			}
			for _, secret := range loaded.WebhookSecrets {
				if _, err := fmt.Fprintln(p.Stdout, secret.ForTenant(args[0]).Reveal()); err != nil {
					return fmt.Errorf("print the secret: %w", err)
				}
			}
			return nil
		},
	}
}
