{{- define "baton.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "baton.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "baton.selector" . }}
{{- end -}}

{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The name of the Secret with the tokens. */}}
{{- define "baton.tokens" -}}
{{- .Values.tokens.existingSecret | default (printf "%s-tokens" (include "baton.name" .)) -}}
{{- end -}}

{{- define "baton.scheme" -}}
{{- if .Values.tls.secretName }}https{{ else }}http{{ end -}}
{{- end -}}

{{- define "baton.address" -}}
{{ include "baton.scheme" . }}://{{ include "baton.name" . }}-broker.{{ .Release.Namespace }}.svc:8470
{{- end -}}

{{/* Lines of TOML for a flat map. Scalars, and lists of them, are written the same way in JSON and TOML. */}}
{{- define "baton.toml" -}}
{{- range $key, $value := . }}
{{ $key }} = {{ toJson $value }}
{{- end }}
{{- end -}}

{{/* The security context of every container of this chart. */}}
{{- define "baton.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "baton.pools" -}}
{{- .Values.pools | default (dict "gpu" dict) | toJson -}}
{{- end -}}

{{/* JSON of one pool's settings, merged over poolDefaults. Argument: `dict "root" $ "name" NAME`. */}}
{{- define "baton.pool" -}}
{{- $own := index (include "baton.pools" .root | fromJson) .name | default dict -}}
{{- mergeOverwrite (deepCopy .root.Values.poolDefaults) (deepCopy $own) | toJson -}}
{{- end -}}

{{- define "baton.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* This cluster's version of the API for device claims. */}}
{{- define "baton.claims" -}}
{{- if semverCompare ">=1.34.0-0" .Capabilities.KubeVersion.Version }}resource.k8s.io/v1{{ else }}resource.k8s.io/v1beta2{{ end -}}
{{- end -}}
