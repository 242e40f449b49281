package aztablestore

import "github.com/Azure/azure-sdk-for-go/sdk/azcore"

// Lowest converts any bound of a scan to a legal key.
var Lowest = lowest

// DecodeRow decodes an entity.
var DecodeRow = decodeRow

// Alphabet holds the legal characters of keys.
const Alphabet = alphabet

// WithCredential returns the options with that credential for Endpoint.
func WithCredential(options Options, credential azcore.TokenCredential) Options {
	options.credential = credential
	return options
}
