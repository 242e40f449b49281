package aztablestore

import "github.com/Azure/azure-sdk-for-go/sdk/azcore"

// Lowest is what turns any bound of a scan into one that a key can have.
var Lowest = lowest

// DecodeRow is what reads an entity.
var DecodeRow = decodeRow

// Alphabet holds the characters of keys.
const Alphabet = alphabet

// WithCredential returns the options with that credential for Endpoint.
func WithCredential(options Options, credential azcore.TokenCredential) Options {
	options.credential = credential
	return options
}
