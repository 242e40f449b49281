package auth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// DefaultScopes are the scopes that a sign-in asks for.
const DefaultScopes = "openid"

// SignInConfig configures a [SignIn].
type SignInConfig struct {
	// Issuer is where users sign in. Required.
	Issuer *Issuer
	// ClientID is the id under which the issuer knows this server. Required.
	ClientID string
	// SecretFile holds the client's secret. Optional: a public client has none.
	SecretFile string
	// Scopes are asked for, with spaces between them. Optional. Defaults to
	// [DefaultScopes].
	Scopes string
}

// SignIn lets people sign in at an issuer, with the authorization code flow and PKCE. It is
// safe for concurrent use.
//
// Source: RFC 6749, section 4.1, and RFC 7636.
type SignIn struct{ cfg SignInConfig }

// NewSignIn returns a sign-in. The error names the field that is missing.
func NewSignIn(cfg SignInConfig) (*SignIn, error) {
	if cfg.Issuer == nil || cfg.ClientID == "" {
		return nil, errors.New("auth: Issuer and ClientID are required to sign in")
	}
	cfg.Scopes = cmp.Or(cfg.Scopes, DefaultScopes)
	return &SignIn{cfg: cfg}, nil
}

// client returns this server as a client of the issuer. It returns [ErrIssuerUnavailable]
// if the issuer does not answer.
func (s *SignIn) client(ctx context.Context, redirect string) (*oauth2.Config, error) {
	issuer := s.cfg.Issuer
	known, err := issuer.current(ctx)
	if err != nil {
		return nil, err
	}
	page, _, _ := strings.Cut(known.endpoint.AuthURL, "?") // It may have a query.
	err = errors.Join(issuer.checkEndpoint("authorization_endpoint", page), issuer.checkEndpoint("token_endpoint", known.endpoint.TokenURL))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, err)
	}
	client := &oauth2.Config{ClientID: s.cfg.ClientID, Endpoint: known.endpoint, RedirectURL: redirect}
	client.Endpoint.AuthStyle, client.Scopes = oauth2.AuthStyleInParams, strings.Fields(s.cfg.Scopes)
	return client, nil
}

// AuthorizationURL returns where a browser begins to sign in. The issuer sends it back to
// redirect with the state and a code, which only who knows the verifier can exchange. It
// returns [ErrIssuerUnavailable] if the issuer does not answer.
func (s *SignIn) AuthorizationURL(ctx context.Context, redirect, state, verifier string) (string, error) {
	client, err := s.client(ctx, redirect)
	if err != nil {
		return "", err
	}
	return client.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier)), nil
}

// Exchange returns the tokens that the issuer gives for a code: the access token and the
// id token, if there is one. They are not checked. It returns [ErrIssuerUnavailable] if the
// issuer does not answer.
func (s *SignIn) Exchange(ctx context.Context, redirect, code, verifier string) ([]string, error) {
	client, err := s.client(ctx, redirect)
	if err != nil {
		return nil, err
	}
	if s.cfg.SecretFile != "" {
		secret, err := os.ReadFile(s.cfg.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("read the client's secret: %w", err)
		}
		client.ClientSecret, client.Endpoint.AuthStyle = strings.TrimSpace(string(secret)), oauth2.AuthStyleInHeader
	}
	given, err := client.Exchange(oidc.ClientContext(ctx, s.cfg.Issuer.client), code, oauth2.VerifierOption(verifier))
	if _, unsent := errors.AsType[*url.Error](err); unsent {
		return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, err)
	}
	if err != nil {
		return nil, fmt.Errorf("the issuer gave no token for the code: %s", Printable(err.Error()))
	}
	tokens := []string{given.AccessToken}
	if id, _ := given.Extra("id_token").(string); id != "" {
		tokens = append(tokens, id)
	}
	return tokens, nil
}
