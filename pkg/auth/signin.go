package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
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
type SignIn struct {
	cfg SignInConfig
	// turn has room for the one caller that reads or changes the fields below.
	turn chan struct{}
	// endpoints are those of the last successful discovery, at fetched. The next one after
	// a failure is not before next.
	endpoints     discovery
	fetched, next time.Time
}

// NewSignIn returns a sign-in. The error names the field that is missing.
func NewSignIn(cfg SignInConfig) (*SignIn, error) {
	if cfg.Issuer == nil || cfg.ClientID == "" {
		return nil, errors.New("auth: Issuer and ClientID are required to sign in")
	}
	cfg.Scopes = cmp.Or(cfg.Scopes, DefaultScopes)
	return &SignIn{cfg: cfg, turn: make(chan struct{}, 1)}, nil
}

// discover returns the issuer's endpoints. It asks at most once an hour, and once a second
// while the issuer does not answer.
func (s *SignIn) discover(ctx context.Context) (discovery, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return discovery{}, fmt.Errorf("%w: %w", ErrIssuerUnavailable, ctx.Err())
	}
	now := time.Now()
	switch {
	case !s.fetched.IsZero() && now.Sub(s.fetched) < refreshAge:
		return s.endpoints, nil
	case now.Before(s.next):
		return discovery{}, fmt.Errorf("%w: it did not answer just now", ErrIssuerUnavailable)
	}
	found, err := s.cfg.Issuer.discover(ctx)
	if err == nil {
		page, _, _ := strings.Cut(found.AuthorizationURL, "?") // It may have a query.
		err = errors.Join(s.cfg.Issuer.checkEndpoint("authorization_endpoint", page),
			s.cfg.Issuer.checkEndpoint("token_endpoint", found.TokenURL))
	}
	if err != nil {
		s.next = now.Add(firstDelay)
		return discovery{}, fmt.Errorf("%w: %w", ErrIssuerUnavailable, err)
	}
	s.endpoints, s.fetched = found, now
	return found, nil
}

// AuthorizationURL returns where a browser begins to sign in. The issuer sends it back to
// redirect with the state and a code, which only who knows the verifier can exchange. It
// returns [ErrIssuerUnavailable] if the issuer does not answer.
func (s *SignIn) AuthorizationURL(ctx context.Context, redirect, state, verifier string) (string, error) {
	endpoints, err := s.discover(ctx)
	if err != nil {
		return "", err
	}
	challenge := sha256.Sum256([]byte(verifier))
	separator := "?"
	if strings.Contains(endpoints.AuthorizationURL, "?") {
		separator = "&"
	}
	return endpoints.AuthorizationURL + separator + url.Values{
		"response_type": {"code"}, "client_id": {s.cfg.ClientID}, "redirect_uri": {redirect}, "scope": {s.cfg.Scopes}, "state": {state},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(challenge[:])}, "code_challenge_method": {"S256"},
	}.Encode(), nil
}

// Exchange returns the tokens that the issuer gives for a code: the access token and the
// id token, as far as there are any. They are not checked. It returns
// [ErrIssuerUnavailable] if the issuer does not answer.
func (s *SignIn) Exchange(ctx context.Context, redirect, code, verifier string) ([]string, error) {
	endpoints, err := s.discover(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	form := url.Values{
		"grant_type": {"authorization_code"}, "code": {code}, "redirect_uri": {redirect},
		"client_id": {s.cfg.ClientID}, "code_verifier": {verifier},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoints.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if s.cfg.SecretFile != "" {
		secret, err := os.ReadFile(s.cfg.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("read the client's secret: %w", err)
		}
		request.SetBasicAuth(url.QueryEscape(s.cfg.ClientID), url.QueryEscape(strings.TrimSpace(string(secret))))
	}
	status, answer, err := s.cfg.Issuer.send(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIssuerUnavailable, err)
	}
	var given struct {
		AccessToken string `json:"access_token"`
		IDToken     string `json:"id_token"`
		Error       string `json:"error"`
	}
	err = json.Unmarshal(answer, &given)
	if status != http.StatusOK || err != nil || given.AccessToken == "" && given.IDToken == "" {
		return nil, fmt.Errorf("the issuer gave no token for the code: status %d, error %.100q", status, given.Error)
	}
	var tokens []string
	for _, token := range []string{given.AccessToken, given.IDToken} {
		if token != "" {
			tokens = append(tokens, token)
		}
	}
	return tokens, nil
}
