package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/lucius-project/lucius/internal/config"
	"github.com/lucius-project/lucius/pkg/upkeep"
	"github.com/lucius-project/lucius/pkg/webhook"
)

// buildWebhooks makes what announces the ends of jobs.
func (s *system) buildWebhooks(context.Context) error {
	var err error
	s.guard, err = webhook.NewGuard(webhook.GuardConfig{
		AllowedPrefixes: s.cfg.WebhookNetworks, AllowHTTP: s.cfg.WebhookAllowHTTP,
	})
	if err != nil {
		return err
	}
	secrets, err := s.webhookSecrets()
	if err != nil {
		return err
	}
	s.sender, err = webhook.NewSender(webhook.Config{Guard: s.guard, Secrets: webhook.TenantSecrets(secrets...)})
	if err != nil {
		return err
	}
	gate, err := webhook.NewGate(webhook.GateConfig{})
	if err != nil {
		return err
	}
	s.webhooks, err = upkeep.NewWebhooks(upkeep.WebhooksConfig{
		Ledger: s.ledger, Logger: s.log, Observe: s.metrics.announced,
		Dispatcher: &webhook.Dispatcher{Send: s.sender.Send, Gate: gate, Policy: webhook.StandardPolicy()},
	})
	return err
}

// checkCallbackURL says why no webhook may go to the URL, as far as that can be
// told before its name is looked up.
func (s *system) checkCallbackURL(url string) string {
	if refused, ok := errors.AsType[*webhook.RefusedError](s.guard.CheckURL(url)); ok {
		return refused.Message
	}
	return ""
}

// webhookSecrets are the configured ones, or one that lives as long as the
// process: receivers then get their webhooks, and cannot tell who sent them.
func (s *system) webhookSecrets() ([]webhook.Secret, error) {
	if len(s.cfg.WebhookSecrets) > 0 {
		return s.cfg.WebhookSecrets, nil
	}
	var key [32]byte
	_, _ = rand.Read(key[:]) // It never fails.
	secret, err := webhook.ParseSecret("whsec_" + base64.StdEncoding.EncodeToString(key[:]))
	return []webhook.Secret{secret}, err
}

// webhookSecret prints the secret that a tenant's receivers verify with.
func (p *program) webhookSecret(_ context.Context, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return errors.New("webhook-secret takes one argument, the tenant's id")
	}
	loaded, _, err := config.Load(nil, p.lookup, p.stderr)
	if err != nil {
		return err
	}
	if len(loaded.WebhookSecrets) == 0 {
		return errors.New("LUCIUS_WEBHOOK_SECRETS is not set, so nobody can tell who signed a webhook")
	}
	for _, secret := range loaded.WebhookSecrets {
		if _, err := fmt.Fprintln(p.stdout, secret.ForTenant(args[0]).Reveal()); err != nil {
			return fmt.Errorf("print the secret: %w", err)
		}
	}
	return nil
}
